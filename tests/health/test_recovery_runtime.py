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


async def stop(target: Target, reason: str) -> None:
    raise AssertionError("only a repeated recovery stops a worker")


class Ward:
    """A runtime, its monitor, and its recovery service."""

    def __init__(self, path: Path, time: FakeTime, *, repeatable: bool = False) -> None:
        self.time = time
        self.colony = Colony(path / "hive", time, repeatable=repeatable)
        self.published: list[AgentEvent] = []
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
        self.published.extend(events)

    def see(self) -> None:
        """Pass new events to the monitor."""
        events, self.colony.events[:] = list(self.colony.events), []
        for event in events:
            self.monitor.apply(event, self.time.now)

    async def lost(self) -> Target:
        """Terminate a worker that is in its second node."""
        target = await self.colony.begin()
        control = RuntimeControl(self.colony.runtime, sleep=self.time.sleep)
        stopped = await control.terminate(target, "it is stuck", instruction_id="t1", within=30)
        assert stopped.is_confirmed
        self.see()
        return target

    async def recover(self, target: Target) -> None:
        result = await self.service.request(target, "it was stuck", by="ladder")
        assert result.accepted, result.reason
        self.time.now += 1
        await self.service.advance(self.time.now, stop=stop)
        await self.service.wait_until_idle()

    async def finish(self) -> str:
        """Let the recovered worker complete, and return the id of its run."""
        [execution] = self.colony.runtime.get_stream("start").executions
        self.held_model.may.set()
        result = await self.colony.runtime.wait(execution.id)
        assert result.succeeded
        self.see()
        return execution.id

    def data(self, type_: EventType) -> list[dict[str, object]]:
        return [dict(event.data) for event in self.published if event.type is type_]

    async def close(self) -> None:
        self.held_model.may.set()
        await self.service.close()
        await self.colony.runtime.stop()
        await self.store.close()


@pytest.fixture
async def ward(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Ward]:
    ward = Ward(tmp_path, FakeTime(), repeatable=getattr(request, "param", False))
    yield ward
    await ward.close()


def damage(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace("sweet", "bitter"))


def chain(ward: Ward, target: Target) -> list[Path]:
    """Return the files of a session's checkpoints, newest first."""
    session = ward.colony.runtime.session_store().open(target.session_id)
    return sorted(session.checkpoints.glob("*.json"), reverse=True)


async def test_terminated_worker_continues_from_its_last_checkpoint(ward: Ward) -> None:
    """002 §11: the same run continues in its session as a new incarnation, and is told what happened."""
    target = await ward.lost()
    before = ward.colony.state(target.session_id)
    [newest, *_] = chain(ward, target)
    await ward.recover(target)
    await ward.held_model.thinking.wait()
    now = ward.colony.target()

    assert now.session_id == target.session_id
    assert now.incarnation_id != target.incarnation_id
    assert ward.data(EventType.RECOVERY_INITIATED)[0]["from_checkpoint"] == newest.stem
    assert ward.data(EventType.RECOVERY_COMPLETED)[0]["new_incarnation_id"] == now.incarnation_id
    assert await ward.finish() == before.execution_id
    assert "Recovery, attempt 1" in ward.held_model.words()
    assert newest.stem in ward.held_model.words()
    assert [request[0].content for request in ward.held_model.shown].count("Gather.") == 1
    assert ward.colony.memory(target.session_id)["honey"] == "gold"


async def test_monitor_sees_the_new_incarnation_and_the_watch_succeeds(ward: Ward) -> None:
    target = await ward.lost()
    await ward.recover(target)
    ward.see()
    worker = ward.monitor.get("bee", target.session_id)
    assert worker is not None
    assert not worker.vitals.has_ended
    assert worker.vitals.incarnation_id == ward.colony.target().incarnation_id
    await ward.finish()
    await ward.service.observe(worker)

    [row] = (await ward.service.status(target.session_id)).history
    assert row.state is RecoveryState.SUCCEEDED


async def test_runs_that_follow_in_the_session_are_of_the_new_incarnation(ward: Ward) -> None:
    """Otherwise its events would count as late events of the incarnation before."""
    target = await ward.lost()
    await ward.recover(target)
    life = ward.colony.target().incarnation_id
    await ward.finish()
    run = await ward.colony.runtime.trigger("start", {"message": "More."}, session_id=target.session_id)
    await ward.colony.runtime.wait(run)

    assert ward.colony.state(target.session_id).incarnation_id == life


async def test_broken_checkpoint_falls_back_to_the_one_before(ward: Ward) -> None:
    """B74: the newest checkpoint with a valid hash is used, and later work is repeated."""
    target = await ward.lost()
    newest, before = chain(ward, target)
    damage(newest)
    await ward.recover(target)
    await ward.finish()

    [events] = ward.data(EventType.RECOVERY_INITIATED)
    assert (events["from_checkpoint"], events["skipped"]) == (before.stem, [newest.stem])
    assert ward.colony.memory(target.session_id)["nectar"] == "sweet"


@pytest.mark.parametrize("ward", [True], indirect=True, ids=["repeatable"])
async def test_repeatable_graph_without_a_checkpoint_starts_over(ward: Ward) -> None:
    """B74, B100: it starts with its original input, without the conversation of the failed run."""
    target = await ward.lost()
    before = ward.colony.state(target.session_id)
    for path in chain(ward, target):
        damage(path)
    await ward.recover(target)
    run = await ward.finish()

    assert run != before.execution_id
    assert ward.colony.state(target.session_id).input == {"message": "Make honey."}
    gathers = [request for request in ward.held_model.shown if request[0].content == "Gather."]
    assert len(gathers) == 2
    assert [m.content for m in gathers[1] if m.role == "user"].count("Make honey.") == 1
    assert any("start the task over" in m.content for m in gathers[1])


async def test_unrepeatable_graph_without_a_checkpoint_is_left_to_a_person(ward: Ward) -> None:
    """B100: its nodes do not run again."""
    target = await ward.lost()
    for path in chain(ward, target):
        damage(path)
    requests = len(ward.held_model.shown)
    await ward.recover(target)

    assert len(ward.held_model.shown) == requests
    [failed] = ward.data(EventType.RECOVERY_FAILED)
    assert failed["exhausted"]
    assert f"queenright recover {target.session_id} --from-start" in str(failed["reason"])


async def test_completed_run_is_not_recovered(ward: Ward) -> None:
    """B70: the stored session decides, regardless of the monitor's state."""
    target = await ward.colony.begin()
    await ward.finish()

    with pytest.raises(RespawnRefusedError, match="completed") as error:
        await RuntimeRespawner(ward.colony.runtime).chain(target)
    assert error.value.over


async def test_paused_run_is_not_recovered_after_a_restart(ward: Ward) -> None:
    """
    B107: a stop of the service pauses it; the stored session decides, regardless of the monitor's state.
    """
    target = await ward.colony.begin()
    await ward.colony.runtime.stop()
    ward.colony = Colony(ward.colony.path, ward.time)
    await ward.colony.runtime.start()

    with pytest.raises(RespawnRefusedError, match="paused on purpose") as error:
        await RuntimeRespawner(ward.colony.runtime).chain(target)
    assert error.value.over


async def test_cancelled_run_is_not_recovered(ward: Ward) -> None:
    """B70"""
    target = await ward.colony.begin()
    [execution] = ward.colony.runtime.get_stream("start").executions
    await ward.colony.runtime.cancel_execution(execution.id)

    with pytest.raises(RespawnRefusedError, match="cancelled"):
        await RuntimeRespawner(ward.colony.runtime).chain(target)


async def test_checkpoints_of_earlier_runs_in_the_session_are_not_of_the_chain(ward: Ward) -> None:
    """B70: the previous run has finished."""
    target = await ward.colony.begin()
    await ward.finish()
    ward.held_model.may.clear()
    ward.held_model.thinking.clear()
    await ward.colony.runtime.trigger("start", {"message": "More."}, session_id=target.session_id)
    await ward.held_model.thinking.wait()
    control = RuntimeControl(ward.colony.runtime, sleep=ward.time.sleep)
    await control.terminate(ward.colony.target(), "stuck", instruction_id="t2", within=30)
    links = await RuntimeRespawner(ward.colony.runtime).chain(target)

    assert len(chain(ward, target)) == 4
    assert len(links) == 2


async def test_running_worker_is_not_started_twice(ward: Ward) -> None:
    target = await ward.colony.begin()
    respawner = RuntimeRespawner(ward.colony.runtime)

    with pytest.raises(RespawnRefusedError, match="stop it first"):
        await respawner.respawn(
            target, None, task_id="t", attempt=1, note="", repeatable=False, may_start_over=False
        )
    assert ward.colony.runtime.get_stream("start").pending == 1


def test_foreign_or_unknown_session_is_not_reached(tmp_path: Path) -> None:
    respawner = RuntimeRespawner(Colony(tmp_path, FakeTime()).runtime)

    for agent, session in (("bee", "none"), ("drone", "s1"), ("", "s1"), ("bee", "../x")):
        assert not respawner.can_reach(Target(agent_id=agent, session_id=session, incarnation_id="i"))


async def test_killed_worker_is_recovered_by_another_process(ward: Ward, tmp_path: Path) -> None:
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
    await ward.colony.runtime.start()
    control = RuntimeControl(ward.colony.runtime, sleep=ward.time.sleep)

    assert control.can_reach(target)
    assert (await control.terminate(target, "silent", instruction_id="t1", within=30)).is_confirmed
    await ward.recover(target)
    await ward.finish()

    [events] = ward.data(EventType.RECOVERY_INITIATED)
    assert events["from_checkpoint"] is not None
    state = ward.colony.state(target.session_id)
    assert state.status is SessionStatus.COMPLETED
    assert state.incarnation_id != target.incarnation_id
    assert [request[0].content for request in ward.held_model.shown] == ["Make."]
    assert "Recovery, attempt 1" in ward.held_model.words()
