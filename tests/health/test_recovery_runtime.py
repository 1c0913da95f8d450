"""Recovery of workers on Queenright's runtime: real sessions, checkpoints, processes and store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queenright.health.interventions.runtime_control import RuntimeControl
from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.recovery.recovery import RecoveryState
from queenright.health.recovery.recovery_service import RecoveryService
from queenright.health.recovery.respawner import RespawnRefusedError
from queenright.health.recovery.runtime_respawner import RuntimeRespawner
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.storage.session_state import SessionStatus
from tests.health.runtime_parts import Colony, HeldModel
from tests.runtime.conftest import FakeTime

ROOT = Path(__file__).parents[2]


async def refuse_stop(target: Target, reason: str) -> None:
    raise AssertionError("only a repeated recovery stops a worker")


class RecoveredRuntime:
    """A runtime, its monitor, and its recovery service."""

    def __init__(self, path: Path, time: FakeTime, *, repeatable: bool = False) -> None:
        self.time = time
        self.colony = Colony(path / "hive", time, repeatable=repeatable)
        self.published_events: list[AgentEvent] = []
        self.store = Store.open(f"sqlite:///{path / 'ward.db'}")
        self.monitor = HealthMonitor(HealthSettings())
        self.service = RecoveryService(
            self.store,
            settings=HealthSettings(),
            monitor=self.monitor,
            respawners=[RuntimeRespawner(self.colony.runtime)],
            clock=time,
            publish=self.publish,
            sleep=time.sleep,
        )

    @property
    def held_model(self) -> HeldModel:
        return self.colony.held_model

    def publish(self, *events: AgentEvent) -> None:
        self.published_events.extend(events)

    def apply_new_events(self) -> None:
        """Pass new events to the monitor."""
        events, self.colony.events[:] = list(self.colony.events), []
        for event in events:
            self.monitor.apply(event, self.time.now)

    async def terminate_in_second_node(self) -> Target:
        """Terminate a worker that is in its second node."""
        target = await self.colony.begin_run()
        control = RuntimeControl(self.colony.runtime, sleep=self.time.sleep)
        stop_result = await control.terminate(target, "it is stuck", instruction_id="t1", within=30)
        assert stop_result.is_confirmed
        self.apply_new_events()
        return target

    async def recover(self, target: Target) -> None:
        result = await self.service.request(target, "it was stuck", by="ladder")
        assert result.accepted, result.reason
        self.time.now += 1
        await self.service.advance(self.time.now, stop=refuse_stop)
        await self.service.wait_until_idle()

    async def finish(self) -> str:
        """Let the recovered worker complete, and return the id of its run."""
        [execution] = self.colony.runtime.get_stream("start").executions
        self.held_model.answer_allowed.set()
        execution_result = await self.colony.runtime.wait(execution.id)
        assert execution_result.succeeded
        self.apply_new_events()
        return execution.id

    def list_event_data(self, type_: EventType) -> list[dict[str, object]]:
        return [dict(event.data) for event in self.published_events if event.type is type_]

    async def close(self) -> None:
        self.held_model.answer_allowed.set()
        await self.service.close()
        await self.colony.runtime.stop()
        await self.store.close()


@pytest.fixture
async def recovered_runtime(
    tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[RecoveredRuntime]:
    recovered_runtime = RecoveredRuntime(tmp_path, FakeTime(), repeatable=getattr(request, "param", False))
    yield recovered_runtime
    await recovered_runtime.close()


def damage_file(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace("sweet", "bitter"))


def list_checkpoint_files(recovered_runtime: RecoveredRuntime, target: Target) -> list[Path]:
    """Return the files of a session's checkpoints, newest first."""
    session = recovered_runtime.colony.runtime.session_store().open(target.session_id)
    return sorted(session.checkpoints.glob("*.json"), reverse=True)


async def test_terminated_worker_continues_from_its_last_checkpoint(
    recovered_runtime: RecoveredRuntime,
) -> None:
    """002 §11: the same run continues in its session as a new incarnation, and is told what happened."""
    target = await recovered_runtime.terminate_in_second_node()
    before = recovered_runtime.colony.read_state(target.session_id)
    [newest, *_] = list_checkpoint_files(recovered_runtime, target)
    await recovered_runtime.recover(target)
    await recovered_runtime.held_model.second_call_started.wait()
    now = recovered_runtime.colony.get_target()

    assert now.session_id == target.session_id
    assert now.incarnation_id != target.incarnation_id
    assert (
        recovered_runtime.list_event_data(EventType.RECOVERY_INITIATED)[0]["from_checkpoint"] == newest.stem
    )
    assert (
        recovered_runtime.list_event_data(EventType.RECOVERY_COMPLETED)[0]["new_incarnation_id"]
        == now.incarnation_id
    )
    assert await recovered_runtime.finish() == before.execution_id
    assert "Recovery, attempt 1" in recovered_runtime.held_model.format_last_messages()
    assert newest.stem in recovered_runtime.held_model.format_last_messages()
    assert [request[0].content for request in recovered_runtime.held_model.requests].count("Gather.") == 1
    assert recovered_runtime.colony.read_memory(target.session_id)["honey"] == "gold"


async def test_monitor_sees_the_new_incarnation_and_the_watch_succeeds(
    recovered_runtime: RecoveredRuntime,
) -> None:
    target = await recovered_runtime.terminate_in_second_node()
    await recovered_runtime.recover(target)
    recovered_runtime.apply_new_events()
    worker = recovered_runtime.monitor.get("bee", target.session_id)
    assert worker is not None
    assert not worker.vitals.has_ended
    assert worker.vitals.incarnation_id == recovered_runtime.colony.get_target().incarnation_id
    await recovered_runtime.finish()
    await recovered_runtime.service.observe(worker)

    [row] = (await recovered_runtime.service.status(target.session_id)).history
    assert row.state is RecoveryState.SUCCEEDED


async def test_runs_that_follow_in_the_session_are_of_the_new_incarnation(
    recovered_runtime: RecoveredRuntime,
) -> None:
    """Otherwise the run's events would count as late events of the previous incarnation."""
    target = await recovered_runtime.terminate_in_second_node()
    await recovered_runtime.recover(target)
    incarnation_id = recovered_runtime.colony.get_target().incarnation_id
    await recovered_runtime.finish()
    run = await recovered_runtime.colony.runtime.trigger(
        "start", {"message": "More."}, session_id=target.session_id
    )
    await recovered_runtime.colony.runtime.wait(run)

    assert recovered_runtime.colony.read_state(target.session_id).incarnation_id == incarnation_id


async def test_broken_checkpoint_falls_back_to_the_one_before(recovered_runtime: RecoveredRuntime) -> None:
    """B74: the newest checkpoint with a valid hash is used, and later work is repeated."""
    target = await recovered_runtime.terminate_in_second_node()
    newest, before = list_checkpoint_files(recovered_runtime, target)
    damage_file(newest)
    await recovered_runtime.recover(target)
    await recovered_runtime.finish()

    [event_data] = recovered_runtime.list_event_data(EventType.RECOVERY_INITIATED)
    assert (event_data["from_checkpoint"], event_data["skipped"]) == (before.stem, [newest.stem])
    assert recovered_runtime.colony.read_memory(target.session_id)["nectar"] == "sweet"


@pytest.mark.parametrize("recovered_runtime", [True], indirect=True, ids=["repeatable"])
async def test_repeatable_graph_without_a_checkpoint_starts_over(recovered_runtime: RecoveredRuntime) -> None:
    """B74, B100: the graph starts with its original input, without the conversation of the failed run."""
    target = await recovered_runtime.terminate_in_second_node()
    before = recovered_runtime.colony.read_state(target.session_id)
    for path in list_checkpoint_files(recovered_runtime, target):
        damage_file(path)
    await recovered_runtime.recover(target)
    run = await recovered_runtime.finish()

    assert run != before.execution_id
    assert recovered_runtime.colony.read_state(target.session_id).input == {"message": "Make honey."}
    gather_requests = [
        request for request in recovered_runtime.held_model.requests if request[0].content == "Gather."
    ]
    assert len(gather_requests) == 2
    assert [message.content for message in gather_requests[1] if message.role == "user"].count(
        "Make honey."
    ) == 1
    assert any("start the task over" in message.content for message in gather_requests[1])


async def test_unrepeatable_graph_without_a_checkpoint_is_left_to_a_person(
    recovered_runtime: RecoveredRuntime,
) -> None:
    """B100: the graph's nodes do not run again."""
    target = await recovered_runtime.terminate_in_second_node()
    for path in list_checkpoint_files(recovered_runtime, target):
        damage_file(path)
    requests = len(recovered_runtime.held_model.requests)
    await recovered_runtime.recover(target)

    assert len(recovered_runtime.held_model.requests) == requests
    [failure] = recovered_runtime.list_event_data(EventType.RECOVERY_FAILED)
    assert failure["exhausted"]
    assert f"queenright recover {target.session_id} --from-start" in str(failure["reason"])


async def test_completed_run_is_not_recovered(recovered_runtime: RecoveredRuntime) -> None:
    """B70: the stored session decides, regardless of the monitor's state."""
    target = await recovered_runtime.colony.begin_run()
    await recovered_runtime.finish()

    with pytest.raises(RespawnRefusedError, match="completed") as error:
        await RuntimeRespawner(recovered_runtime.colony.runtime).chain(target)
    assert error.value.over


async def test_paused_run_is_not_recovered_after_a_restart(recovered_runtime: RecoveredRuntime) -> None:
    """
    B107: a stop of the service pauses the run; the stored session decides, regardless of the monitor's state.
    """
    target = await recovered_runtime.colony.begin_run()
    await recovered_runtime.colony.runtime.stop()
    recovered_runtime.colony = Colony(recovered_runtime.colony.path, recovered_runtime.time)
    await recovered_runtime.colony.runtime.start()

    with pytest.raises(RespawnRefusedError, match="paused on purpose") as error:
        await RuntimeRespawner(recovered_runtime.colony.runtime).chain(target)
    assert error.value.over


async def test_cancelled_run_is_not_recovered(recovered_runtime: RecoveredRuntime) -> None:
    """B70."""
    target = await recovered_runtime.colony.begin_run()
    [execution] = recovered_runtime.colony.runtime.get_stream("start").executions
    await recovered_runtime.colony.runtime.cancel_execution(execution.id)

    with pytest.raises(RespawnRefusedError, match="cancelled"):
        await RuntimeRespawner(recovered_runtime.colony.runtime).chain(target)


async def test_checkpoints_of_earlier_runs_are_not_in_the_chain(
    recovered_runtime: RecoveredRuntime,
) -> None:
    """B70: the previous run has finished."""
    target = await recovered_runtime.colony.begin_run()
    await recovered_runtime.finish()
    recovered_runtime.held_model.answer_allowed.clear()
    recovered_runtime.held_model.second_call_started.clear()
    await recovered_runtime.colony.runtime.trigger(
        "start", {"message": "More."}, session_id=target.session_id
    )
    await recovered_runtime.held_model.second_call_started.wait()
    control = RuntimeControl(recovered_runtime.colony.runtime, sleep=recovered_runtime.time.sleep)
    await control.terminate(recovered_runtime.colony.get_target(), "stuck", instruction_id="t2", within=30)
    links = await RuntimeRespawner(recovered_runtime.colony.runtime).chain(target)

    assert len(list_checkpoint_files(recovered_runtime, target)) == 4
    assert len(links) == 2


async def test_running_worker_is_not_started_twice(recovered_runtime: RecoveredRuntime) -> None:
    target = await recovered_runtime.colony.begin_run()
    respawner = RuntimeRespawner(recovered_runtime.colony.runtime)

    with pytest.raises(RespawnRefusedError, match="stop it first"):
        await respawner.respawn(
            target, None, task_id="t", attempt=1, note="", repeatable=False, may_start_over=False
        )
    assert recovered_runtime.colony.runtime.get_stream("start").pending == 1


def test_foreign_or_unknown_session_is_not_reached(tmp_path: Path) -> None:
    respawner = RuntimeRespawner(Colony(tmp_path, FakeTime()).runtime)

    for agent, session in (("bee", "none"), ("drone", "s1"), ("", "s1"), ("bee", "../x")):
        assert not respawner.can_reach(Target(agent_id=agent, session_id=session, incarnation_id="i"))


async def test_killed_worker_is_recovered_by_another_process(
    recovered_runtime: RecoveredRuntime, tmp_path: Path
) -> None:
    """002 §11: after ``kill -9``, the next service resumes the work from the checkpoint."""
    child = subprocess.Popen(  # noqa: ASYNC220 - it is killed below
        [sys.executable, "-m", "tests.health.killed_worker", str(tmp_path / "hive")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    target = Target(**json.loads(child.stdout.readline()))
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    await recovered_runtime.colony.runtime.start()
    control = RuntimeControl(recovered_runtime.colony.runtime, sleep=recovered_runtime.time.sleep)

    assert control.can_reach(target)
    assert (await control.terminate(target, "silent", instruction_id="t1", within=30)).is_confirmed
    await recovered_runtime.recover(target)
    await recovered_runtime.finish()

    [event_data] = recovered_runtime.list_event_data(EventType.RECOVERY_INITIATED)
    assert event_data["from_checkpoint"] is not None
    state = recovered_runtime.colony.read_state(target.session_id)
    assert state.status is SessionStatus.COMPLETED
    assert state.incarnation_id != target.incarnation_id
    assert [request[0].content for request in recovered_runtime.held_model.requests] == ["Make."]
    assert "Recovery, attempt 1" in recovered_runtime.held_model.format_last_messages()
