"""Nudge and terminate workers on a real runtime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from queenright.health.interventions.runtime_control import RuntimeControl
from queenright.health.interventions.target import Target
from queenright.health.interventions.worker_control import NudgeDelivery, WorkerUnreachableError
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.events import EventType
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import ModelReply
from queenright.runtime.storage.session_state import SessionStatus
from tests.health.runtime_parts import Colony
from tests.runtime.conftest import FakeTime, ScriptedModel
from tests.runtime.node_parts import call_reply, output_reply


@pytest.fixture
async def colony(tmp_path: Path, fake_time: FakeTime) -> AsyncIterator[Colony]:
    colony = Colony(tmp_path, fake_time)
    yield colony
    colony.held_model.answer_allowed.set()
    await colony.runtime.stop()


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


def make_control(colony: Colony) -> RuntimeControl:
    return RuntimeControl(colony.runtime, sleep=colony.time.sleep)


async def send_nudge(colony: Colony, target: Target, *, ttl: float = 600) -> NudgeDelivery:
    expires = colony.time.now + ttl
    return await make_control(colony).nudge(target, "Get on.", instruction_id="n1", expires_at=expires)


def read_inbox(path: Path) -> list[Path]:
    return list(path.glob("sessions/*/conversations/make/inbox/*"))


class BlockingModel(ScriptedModel):
    """Blocks its second answer until ``answer_allowed`` is set."""

    def __init__(self) -> None:
        super().__init__([output_reply(nectar="sweet"), call_reply(text="hm"), output_reply(honey="gold")])
        self.second_call_started = asyncio.Event()
        self.answer_allowed = asyncio.Event()

    async def complete(self, *args: Any) -> ModelReply:
        answer = await super().complete(*args)
        if len(self.requests) == 2:
            self.second_call_started.set()
            await self.answer_allowed.wait()
        return answer


async def nudge_in_second_node(
    tmp_path: Path, time: FakeTime, *, times: int = 1, ttl: float = 600, later_replies: float = 0
) -> tuple[Colony, BlockingModel]:
    """Nudge a run in the first turn of its second node and wait until it completes."""
    model = BlockingModel()
    colony = Colony(tmp_path, time, model=model)
    await colony.runtime.start()
    run = await colony.runtime.trigger("start", {"message": "Make honey."})
    await model.second_call_started.wait()
    target = colony.get_target()
    for _ in range(times):
        assert await send_nudge(colony, target, ttl=ttl) is NudgeDelivery.INJECTED
    time.now += later_replies
    model.answer_allowed.set()
    assert (await colony.runtime.wait(run)).succeeded
    await colony.runtime.stop()
    return colony, model


async def test_model_reads_a_nudge_before_its_next_turn(tmp_path: Path, fake_time: FakeTime) -> None:
    """002 §11: a nudge reaches the agent's context, although its node is not client-facing."""
    _, model = await nudge_in_second_node(tmp_path, fake_time)

    messages = [(message.role, message.content) for message in model.requests[2]]
    assert ("user", "Get on.") in messages
    assert all("Get on." not in message.content for message in model.requests[1])


async def test_nudge_is_delivered_once(tmp_path: Path, fake_time: FakeTime) -> None:
    _, model = await nudge_in_second_node(tmp_path, fake_time, times=2)

    assert [message.content for message in model.requests[2]].count("Get on.") == 1


async def test_expired_nudge_is_dropped(tmp_path: Path, fake_time: FakeTime) -> None:
    """B67: the reason for the nudge no longer applies."""
    colony, model = await nudge_in_second_node(tmp_path, fake_time, ttl=60, later_replies=60)

    assert all("Get on." not in message.content for message in model.requests[2])
    assert read_inbox(tmp_path) == []
    assert colony.events


async def test_other_incarnation_is_not_nudged(colony: Colony) -> None:
    """B67: a nudge for one incarnation is never delivered to another."""
    target = (await colony.begin_run())._replace(incarnation_id="another")

    assert not make_control(colony).can_reach(target)
    with pytest.raises(WorkerUnreachableError, match="runs in its session now"):
        await send_nudge(colony, target)


async def test_nudge_is_not_read_by_the_next_incarnation(tmp_path: Path, fake_time: FakeTime) -> None:
    """B67: the nudge was in the inbox when the process restarted."""
    first = Colony(tmp_path, fake_time)
    target = await first.begin_run()
    await send_nudge(first, target)
    await first.runtime.stop()
    second = Colony(tmp_path, fake_time)
    await second.runtime.start()
    run = await second.runtime.resume(target.session_id)
    second.held_model.answer_allowed.set()

    assert (await second.runtime.wait(run)).succeeded
    assert "Get on." not in second.held_model.format_last_messages()
    assert read_inbox(tmp_path) == []
    await second.runtime.stop()


async def test_worker_waiting_for_its_user_is_not_nudged(tmp_path: Path, fake_time: FakeTime) -> None:
    model = ScriptedModel(
        [output_reply(nectar="sweet"), call_reply(("ask_user", '{"question": "Which jar?"}'))]
    )
    colony = Colony(tmp_path, fake_time, model=model, client_facing=True)
    await colony.runtime.start()
    await colony.runtime.trigger("start", {"message": "Make honey."})
    await fake_time.settle()

    assert [node.question for node in colony.runtime.list_waiting_nodes()] == ["Which jar?"]
    with pytest.raises(WorkerUnreachableError, match="waits for its user"):
        await send_nudge(colony, colony.get_target())
    await colony.runtime.stop()


async def test_nudge_does_not_answer_a_question_to_the_user(tmp_path: Path, fake_time: FakeTime) -> None:
    """
    The nudge arrives during a model call; the node then asks its user, and reads the nudge after the answer.
    """
    model = BlockingModel()
    model.replies[1] = call_reply(("ask_user", '{"question": "Which jar?"}'))
    colony = Colony(tmp_path, fake_time, model=model, client_facing=True)
    await colony.runtime.start()
    run = await colony.runtime.trigger("start", {"message": "Make honey."})
    await model.second_call_started.wait()
    await send_nudge(colony, colony.get_target())
    model.answer_allowed.set()
    await fake_time.settle()

    assert [node.question for node in colony.runtime.list_waiting_nodes()] == ["Which jar?"]
    await colony.runtime.inject_input("make", "The big one.")
    assert (await colony.runtime.wait(run)).succeeded
    contents = [message.content for message in model.requests[2]]
    assert contents.index("The big one.") < contents.index("Get on.")
    await colony.runtime.stop()


async def test_terminated_worker_stops_and_its_state_is_in_a_checkpoint(colony: Colony) -> None:
    """002 §11: the worker is stopped, its state is saved, and its session is released."""
    target = await colony.begin_run()

    stop_result = await make_control(colony).terminate(target, "it is stuck", instruction_id="t1", within=30)

    assert stop_result.is_confirmed
    [newest, *_] = colony.open_checkpoint_store(target.session_id).list_checkpoints()
    assert stop_result.checkpoint_id == newest.checkpoint_id
    assert newest.reason == "terminate"
    assert newest.memory["nectar"] == "sweet"
    assert [pending.node_id for pending in newest.execution.pending] == ["make"]
    state = colony.read_state(target.session_id)
    assert (state.status, state.error) == (SessionStatus.TERMINATED, "it is stuck")
    store = colony.runtime.session_store()
    store.claim(store.open(target.session_id)).release()
    assert colony.runtime.get_stream("start").pending == 0


async def test_terminated_worker_is_not_failed_in_the_monitor(colony: Colony) -> None:
    target = await colony.begin_run()
    await make_control(colony).terminate(target, "it is stuck", instruction_id="t1", within=30)
    monitor = HealthMonitor(HealthSettings())
    for event in colony.events:
        monitor.apply(event, event.time)

    worker = monitor.get("bee")
    assert worker is not None
    assert worker.vitals.status is WorkerStatus.TERMINATED
    assert worker.vitals.consecutive_failures == 0


async def test_other_incarnation_is_not_terminated(colony: Colony) -> None:
    """B67: the running incarnation is not terminated either."""
    target = (await colony.begin_run())._replace(incarnation_id="another")

    with pytest.raises(WorkerUnreachableError, match="check it again"):
        await make_control(colony).terminate(target, "it is stuck", instruction_id="t1", within=30)
    assert colony.runtime.get_stream("start").pending == 1


async def test_killed_worker_is_terminated_only_if_nothing_runs_it(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    first = Colony(tmp_path, fake_time)
    target = await first.begin_run()
    second = Colony(tmp_path, fake_time)
    await second.runtime.start()

    assert make_control(second).can_reach(target)
    with pytest.raises(WorkerUnreachableError, match="busy"):
        await make_control(second).terminate(target, "it is silent", instruction_id="t1", within=30)
    await first.runtime.stop()
    stop_result = await make_control(second).terminate(target, "it is silent", instruction_id="t2", within=30)

    assert stop_result.is_confirmed
    assert "not running" in stop_result.detail
    await second.runtime.stop()


async def test_function_that_cannot_be_stopped_leaves_the_stop_unconfirmed(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    call_started, may_end = threading.Event(), threading.Event()

    def block_in_function() -> int:
        call_started.set()
        may_end.wait(30)
        return 1

    graph = GraphSpec(
        id="mole",
        nodes=(NodeSpec(id="dig", node_type="function", function="dig", output_keys=("hole",)),),
        entry_points=(EntryPointSpec(id="start", node_id="dig"),),
    )
    runtime = AgentRuntime(bus=EventBus(), storage=tmp_path, clock=fake_time, disk=fake_time.disk)
    runtime.add_graph(graph, functions={"dig": block_in_function}, agent_id="mole", primary=True)
    await runtime.start()
    await runtime.trigger("start")
    await asyncio.to_thread(call_started.wait, 30)
    [execution] = runtime.get_stream("start").executions
    target = Target(
        agent_id="mole",
        session_id=execution.session_id or "",
        incarnation_id=execution.incarnation_id,
    )

    stop_result = await RuntimeControl(runtime).terminate(target, "stuck", instruction_id="t", within=30)

    assert not stop_result.is_confirmed
    assert "still running in a thread" in stop_result.detail
    may_end.set()
    await runtime.stop()


async def test_termination_is_in_the_execution_event(colony: Colony) -> None:
    target = await colony.begin_run()
    await make_control(colony).terminate(target, "it is stuck", instruction_id="t1", within=30)

    [failure_event] = [event for event in colony.events if event.type is EventType.EXECUTION_FAILED]
    assert (failure_event.data["error_type"], failure_event.data["error"]) == ("terminated", "it is stuck")
