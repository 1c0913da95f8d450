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
    colony.held_model.may.set()
    await colony.runtime.stop()


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


def control(colony: Colony) -> RuntimeControl:
    return RuntimeControl(colony.runtime, sleep=colony.time.sleep)


async def nudge(colony: Colony, target: Target, *, ttl: float = 600) -> NudgeDelivery:
    expires = colony.time.now + ttl
    return await control(colony).nudge(target, "Get on.", instruction_id="n1", expires_at=expires)


def inbox(path: Path) -> list[Path]:
    return list(path.glob("sessions/*/conversations/make/inbox/*"))


class BlockingModel(ScriptedModel):
    """Blocks its second answer until ``may`` is set."""

    def __init__(self) -> None:
        super().__init__([output_reply(nectar="sweet"), call_reply(text="hm"), output_reply(honey="gold")])
        self.thinks = asyncio.Event()
        self.may = asyncio.Event()

    async def complete(self, *args: Any) -> ModelReply:
        answer = await super().complete(*args)
        if len(self.requests) == 2:
            self.thinks.set()
            await self.may.wait()
        return answer


async def nudged(
    tmp_path: Path, time: FakeTime, *, times: int = 1, ttl: float = 600, later: float = 0
) -> tuple[Colony, BlockingModel]:
    """Nudge a run in the first turn of its second node and wait until it completes."""
    model = BlockingModel()
    colony = Colony(tmp_path, time, model=model)
    await colony.runtime.start()
    run = await colony.runtime.trigger("start", {"message": "Make honey."})
    await model.thinks.wait()
    target = colony.target()
    for _ in range(times):
        assert await nudge(colony, target, ttl=ttl) is NudgeDelivery.INJECTED
    time.now += later
    model.may.set()
    assert (await colony.runtime.wait(run)).succeeded
    await colony.runtime.stop()
    return colony, model


async def test_model_reads_a_nudge_before_its_next_turn(tmp_path: Path, fake_time: FakeTime) -> None:
    """002 §11: a nudge reaches the agent's context, although its node is not client-facing."""
    _, model = await nudged(tmp_path, fake_time)

    text = [(m.role, m.content) for m in model.requests[2]]
    assert ("user", "Get on.") in text
    assert all("Get on." not in m.content for m in model.requests[1])


async def test_nudge_is_delivered_once(tmp_path: Path, fake_time: FakeTime) -> None:
    _, model = await nudged(tmp_path, fake_time, times=2)

    assert [m.content for m in model.requests[2]].count("Get on.") == 1


async def test_expired_nudge_is_dropped(tmp_path: Path, fake_time: FakeTime) -> None:
    """B67: its reason no longer applies."""
    colony, model = await nudged(tmp_path, fake_time, ttl=60, later=60)

    assert all("Get on." not in m.content for m in model.requests[2])
    assert inbox(tmp_path) == []
    assert colony.events


async def test_other_incarnation_is_not_nudged(colony: Colony) -> None:
    """B67: a nudge for one incarnation is never delivered to another."""
    target = (await colony.begin())._replace(incarnation_id="another")

    assert not control(colony).can_reach(target)
    with pytest.raises(WorkerUnreachableError, match="runs in its session now"):
        await nudge(colony, target)


async def test_nudge_is_not_read_by_the_next_incarnation(tmp_path: Path, fake_time: FakeTime) -> None:
    """B67: the nudge was in the inbox when the process restarted."""
    first = Colony(tmp_path, fake_time)
    target = await first.begin()
    await nudge(first, target)
    await first.runtime.stop()
    second = Colony(tmp_path, fake_time)
    await second.runtime.start()
    run = await second.runtime.resume(target.session_id)
    second.held_model.may.set()

    assert (await second.runtime.wait(run)).succeeded
    assert "Get on." not in second.held_model.words()
    assert inbox(tmp_path) == []
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
        await nudge(colony, colony.target())
    await colony.runtime.stop()


async def test_nudge_does_not_answer_a_question_to_the_user(tmp_path: Path, fake_time: FakeTime) -> None:
    """It arrives during a model call; the node then asks its user and reads it after the answer."""
    model = BlockingModel()
    model.replies[1] = call_reply(("ask_user", '{"question": "Which jar?"}'))
    colony = Colony(tmp_path, fake_time, model=model, client_facing=True)
    await colony.runtime.start()
    run = await colony.runtime.trigger("start", {"message": "Make honey."})
    await model.thinks.wait()
    await nudge(colony, colony.target())
    model.may.set()
    await fake_time.settle()

    assert [node.question for node in colony.runtime.list_waiting_nodes()] == ["Which jar?"]
    await colony.runtime.inject_input("make", "The big one.")
    assert (await colony.runtime.wait(run)).succeeded
    text = [m.content for m in model.requests[2]]
    assert text.index("The big one.") < text.index("Get on.")
    await colony.runtime.stop()


async def test_terminated_worker_stops_and_its_state_is_in_a_checkpoint(colony: Colony) -> None:
    """002 §11: the worker is stopped, its state is saved, and its session is released."""
    target = await colony.begin()

    stopped = await control(colony).terminate(target, "it is stuck", instruction_id="t1", within=30)

    assert stopped.is_confirmed
    [newest, *_] = colony.checkpoints(target.session_id).list_checkpoints()
    assert stopped.checkpoint_id == newest.checkpoint_id
    assert newest.reason == "terminate"
    assert newest.memory["nectar"] == "sweet"
    assert [pending.node_id for pending in newest.execution.pending] == ["make"]
    state = colony.state(target.session_id)
    assert (state.status, state.error) == (SessionStatus.TERMINATED, "it is stuck")
    store = colony.runtime.session_store()
    store.claim(store.open(target.session_id)).release()
    assert colony.runtime.get_stream("start").pending == 0


async def test_terminated_worker_is_not_failed_in_the_monitor(colony: Colony) -> None:
    target = await colony.begin()
    await control(colony).terminate(target, "it is stuck", instruction_id="t1", within=30)
    monitor = HealthMonitor(HealthSettings())
    for event in colony.events:
        monitor.apply(event, event.time)

    worker = monitor.get("bee")
    assert worker is not None
    assert worker.vitals.status is WorkerStatus.TERMINATED
    assert worker.vitals.consecutive_failures == 0


async def test_other_incarnation_is_not_terminated(colony: Colony) -> None:
    """B67: the running incarnation is not terminated either."""
    target = (await colony.begin())._replace(incarnation_id="another")

    with pytest.raises(WorkerUnreachableError, match="check it again"):
        await control(colony).terminate(target, "it is stuck", instruction_id="t1", within=30)
    assert colony.runtime.get_stream("start").pending == 1


async def test_killed_worker_is_terminated_only_if_nothing_runs_it(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    first = Colony(tmp_path, fake_time)
    target = await first.begin()
    second = Colony(tmp_path, fake_time)
    await second.runtime.start()

    assert control(second).can_reach(target)
    with pytest.raises(WorkerUnreachableError, match="busy"):
        await control(second).terminate(target, "it is silent", instruction_id="t1", within=30)
    await first.runtime.stop()
    stopped = await control(second).terminate(target, "it is silent", instruction_id="t2", within=30)

    assert stopped.is_confirmed
    assert "not running" in stopped.detail
    await second.runtime.stop()


async def test_function_that_cannot_be_stopped_leaves_the_stop_unconfirmed(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    started, may_end = threading.Event(), threading.Event()

    def dig() -> int:
        started.set()
        may_end.wait(30)
        return 1

    graph = GraphSpec(
        id="mole",
        nodes=(NodeSpec(id="dig", node_type="function", function="dig", output_keys=("hole",)),),
        entry_points=(EntryPointSpec(id="start", node_id="dig"),),
    )
    runtime = AgentRuntime(bus=EventBus(), storage=tmp_path, clock=fake_time, disk=fake_time.disk)
    runtime.add_graph(graph, functions={"dig": dig}, agent_id="mole", primary=True)
    await runtime.start()
    await runtime.trigger("start")
    await asyncio.to_thread(started.wait, 30)
    [execution] = runtime.get_stream("start").executions
    target = Target(
        agent_id="mole",
        session_id=execution.session_id or "",
        incarnation_id=execution.incarnation_id,
    )

    stopped = await RuntimeControl(runtime).terminate(target, "stuck", instruction_id="t", within=30)

    assert not stopped.is_confirmed
    assert "still running in a thread" in stopped.detail
    may_end.set()
    await runtime.stop()


async def test_termination_is_in_the_execution_event(colony: Colony) -> None:
    target = await colony.begin()
    await control(colony).terminate(target, "it is stuck", instruction_id="t1", within=30)

    [ended] = [e for e in colony.events if e.type is EventType.EXECUTION_FAILED]
    assert (ended.data["error_type"], ended.data["error"]) == ("terminated", "it is stuck")
