"""The recovery service on a real store, with a respawner in memory: limits, backoff, the watch, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

from queenright.health.action_kind import ActionKind
from queenright.health.breakers.registry import BreakerRegistry
from queenright.health.detection.health_state import HealthState
from queenright.health.interventions.intervention import Intervention, intervention_table
from queenright.health.interventions.intervention import InterventionOutcome as Done
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.recovery.recovery import Recovery, RecoveryResult, RecoveryState
from queenright.health.recovery.recovery_service import RecoveryService, TaskNotFoundError
from queenright.health.recovery.respawner import CheckpointRef, RespawnRefusedError
from queenright.health.recovery.table import recovery_table
from queenright.health.settings import HealthSettings
from queenright.health.settings import RecoverySettings as Limits
from queenright.health.store.database import StoreError
from queenright.health.store.event_log import append_events, read_events
from queenright.health.store.store import Store
from queenright.runtime.breaker_protocols import BreakerKind
from queenright.runtime.events import AgentEvent, EventType

INITIATED = EventType.RECOVERY_INITIATED
COMPLETED = EventType.RECOVERY_COMPLETED
FAILED = EventType.RECOVERY_FAILED


class ZeroRandom(Random):
    """A random source that adds no jitter."""

    def random(self) -> float:
        return 0.0


class FakeRespawner:
    """Starts workers: each is a new incarnation of its session, and reports its start."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.links = [CheckpointRef(checkpoint_id="c1", created_at=0.0, valid=True)]
        self.respawns: list[tuple[str, CheckpointRef | None, int, str]] = []
        self.refusal: RespawnRefusedError | None = None
        self.chain_error: RespawnRefusedError | None = None
        self.should_hang = False
        self.respawn_started = asyncio.Event()
        self.is_absent = False

    def can_reach(self, target: Target) -> bool:
        return not self.is_absent

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        if self.chain_error is not None:
            raise self.chain_error
        return self.links

    async def respawn(
        self,
        target: Target,
        checkpoint: CheckpointRef | None,
        *,
        task_id: str,
        attempt: int,
        note: str,
        repeatable: bool,
        may_start_over: bool,
    ) -> Target:
        self.respawns.append((task_id, checkpoint, attempt, note))
        self.respawn_started.set()
        if self.should_hang:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise self.refusal
        incarnation_id = f"{target.session_id}-{len(self.respawns) + 1}"
        self.fleet.report_event(EventType.EXECUTION_STARTED, target.session_id, incarnation_id)
        return Target(agent_id=target.agent_id, session_id=target.session_id, incarnation_id=incarnation_id)


class Fleet:
    """A recovery service with its store, clock, workers and published events."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.now = 1_000_000.0
        self.published_events: list[AgentEvent] = []
        self.stopped_workers: list[tuple[Target, str]] = []
        self.stop_reason: str | None = None
        self.settings = HealthSettings()
        self.monitor = HealthMonitor(self.settings)
        self.respawner = FakeRespawner(self)
        self.breakers: BreakerRegistry | None = None
        self.open_service()

    def open_service(self) -> None:
        self.store = Store.open(self.url)
        self.service = RecoveryService(
            self.store,
            settings=self.settings,
            monitor=self.monitor,
            respawners=[self.respawner],
            breakers=self.breakers,
            clock=lambda: self.now,
            random=ZeroRandom(),
            publish=self.publish,
            stop_reason=lambda: self.stop_reason,
            sleep=self.sleep,
        )

    async def restart(self) -> list[Recovery]:
        await self.service.close()
        await self.store.close()
        self.open_service()
        return await self.service.load()

    async def list_recoveries(self) -> list[Recovery]:
        """Return the recoveries in the store, newest first."""
        return await self.store.read(lambda conn: recovery_table.newest(conn, 100))

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()

    def publish(self, *events: AgentEvent) -> None:
        self.published_events.extend(events)
        for event in events:
            self.monitor.apply(event, self.now)

    def report_event(
        self, type_: EventType, session: str = "s1", incarnation: str = "s1-1", **data: Any
    ) -> None:
        event = AgentEvent(
            type=type_,
            time=self.now,
            agent_id="bee",
            session_id=session,
            incarnation_id=incarnation,
            data=data,
        )
        self.monitor.apply(event, self.now)

    def terminate_worker(self, session: str = "s1", incarnation: str = "", **start_fields: Any) -> Target:
        """Terminate a running worker."""
        worker = self.monitor.get("bee", session)
        incarnation = incarnation or (worker.vitals.incarnation_id if worker is not None else f"{session}-1")
        self.report_event(EventType.EXECUTION_STARTED, session, incarnation, **start_fields)
        self.now += 1
        self.report_event(EventType.AGENT_TERMINATED, session, incarnation)
        return Target(agent_id="bee", session_id=session, incarnation_id=incarnation)

    async def request_recovery(self, target: Target | None = None, **options: Any) -> RecoveryResult:
        return await self.service.request(
            target or self.terminate_worker(), "it was stuck", by="ladder", **options
        )

    async def stop(self, target: Target, reason: str) -> None:
        self.stopped_workers.append((target, reason))

    async def advance(self, seconds: float = 0.0) -> None:
        self.now += seconds
        await self.service.advance(self.now, stop=self.stop)
        await self.service.wait_until_idle()

    async def fail_worker(self, session: str = "s1") -> None:
        """Let the recovered worker fail, and process the event."""
        worker = self.monitor.get("bee", session)
        assert worker is not None
        self.now += 1
        self.report_event(
            EventType.EXECUTION_FAILED, session, worker.vitals.incarnation_id, error_type="Boom"
        )
        await self.service.observe(worker)

    def list_event_types(self) -> list[EventType]:
        return [event.type for event in self.published_events]

    def list_event_data(self, type_: EventType) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.published_events if event.type is type_]

    async def get_active(self, task: str = "s1") -> Recovery:
        active = (await self.service.status(task)).active
        assert active is not None
        return active


@pytest.fixture
async def fleet(database_url: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(database_url)
    yield fleet
    await fleet.service.close()
    await fleet.store.close()


async def test_lost_worker_is_recovered_from_its_checkpoint(fleet: Fleet) -> None:
    """002 §11: the first recovery is immediate, tells the worker what happened, and keeps its task."""
    result = await fleet.request_recovery()
    assert (result.accepted, result.attempt, result.not_before) == (True, 1, fleet.now)
    assert fleet.service.next_deadline() == fleet.now
    await fleet.advance()

    [(task, checkpoint, attempt, note)] = fleet.respawner.respawns
    assert (task, attempt) == ("s1", 1)
    assert checkpoint is not None
    assert checkpoint.checkpoint_id == "c1"
    assert "it was stuck" in note
    assert fleet.list_event_types() == [INITIATED, COMPLETED]
    assert fleet.list_event_data(INITIATED)[0]["from_checkpoint"] == "c1"
    assert fleet.list_event_data(COMPLETED)[0]["new_incarnation_id"] == "s1-2"
    assert (await fleet.get_active()).state is RecoveryState.WATCHING
    events = await fleet.store.read(read_events)
    assert [event.type for _, event in events] == fleet.list_event_types()


async def test_repeated_recovery_request_changes_nothing(fleet: Fleet) -> None:
    target = fleet.terminate_worker()
    first, second = await asyncio.gather(fleet.request_recovery(target), fleet.request_recovery(target))
    await fleet.advance()
    third = await fleet.request_recovery(target)

    assert first.recovery_id == second.recovery_id == third.recovery_id
    assert len(fleet.respawner.respawns) == 1


async def test_task_gets_three_attempts_and_then_a_person(fleet: Fleet) -> None:
    """
    B72: the second attempt follows a minute after the first failed, the third two minutes later, and no
    fourth.
    """
    await fleet.request_recovery()
    await fleet.advance()
    for wait in (60, 120):
        await fleet.fail_worker()
        assert (await fleet.get_active()).not_before == fleet.now + wait
        await fleet.advance(wait - 1)
        assert (await fleet.get_active()).state is RecoveryState.WAITING
        await fleet.advance(1)
        assert (await fleet.get_active()).state is RecoveryState.WATCHING
    await fleet.fail_worker()
    await fleet.advance(100_000)

    assert [attempt for _, _, attempt, _ in fleet.respawner.respawns] == [1, 2, 3]
    assert [row["exhausted"] for row in fleet.list_event_data(FAILED)] == [False, False, True]
    assert fleet.list_event_data(FAILED)[-1]["attempts"] == 3
    status = await fleet.service.status("s1")
    assert (status.active, status.attempts, status.attempts_left) == (None, 3, 0)
    assert fleet.service.next_deadline() is None


async def test_limits_hold_across_restarts(fleet: Fleet) -> None:
    """B72: the limits hold with a restart after every step."""
    await fleet.request_recovery()
    for wait in (0, 60, 120):
        await fleet.restart()
        await fleet.advance(wait)
        await fleet.restart()
        await fleet.fail_worker()
    await fleet.restart()
    refused_result = await fleet.request_recovery()

    assert len(fleet.respawner.respawns) == 3
    assert not refused_result.accepted
    assert "limit for one task" in refused_result.reason


async def test_refusal_at_the_limit_is_published_once(fleet: Fleet) -> None:
    await test_task_gets_three_attempts_and_then_a_person(fleet)
    before = len(fleet.list_event_data(FAILED))
    target = fleet.terminate_worker()
    for _ in range(5):
        assert not (await fleet.request_recovery(target)).accepted

    assert len(fleet.list_event_data(FAILED)) <= before + 1


async def test_review_allows_exceeding_the_task_limit(fleet: Fleet) -> None:
    """B72: one more attempt is allowed; the reviewer is in the row and in the audit trail."""
    await test_task_gets_three_attempts_and_then_a_person(fleet)
    fleet.terminate_worker()
    assert not (await fleet.service.request_task("s1", by="ada")).accepted

    assert (await fleet.service.request_task("s1", by="ada", reviewed=True)).accepted
    await fleet.advance(240)
    row = await fleet.get_active()
    assert (row.by, row.reviewed, row.attempt) == ("ada", True, 4)
    events = [(data["by"], data["reviewed"]) for data in fleet.list_event_data(INITIATED)]
    assert events == [("ladder", False), ("recovery", False), ("recovery", False), ("ada", True)]
    await fleet.restart()
    await fleet.fail_worker()
    assert fleet.service.active() == []
    assert fleet.list_event_data(FAILED)[-1]["exhausted"]


async def test_limit_of_five_recoveries_per_hour_holds_across_restarts(fleet: Fleet) -> None:
    """B72: the sixth recovery needs a person; another is allowed an hour after the first."""
    for n in range(5):
        assert (await fleet.request_recovery(fleet.terminate_worker(f"s{n}"))).accepted
    await fleet.advance()
    await fleet.restart()
    sixth = await fleet.request_recovery(fleet.terminate_worker("s6"))

    assert not sixth.accepted
    assert "within the hour" in sixth.reason
    assert fleet.list_event_data(FAILED)[-1]["exhausted"]
    assert (await fleet.service.status("s6")).left_this_hour == 0
    fleet.now += 3600
    assert (await fleet.request_recovery(fleet.terminate_worker("s6"))).accepted


async def test_long_held_recovery_precedes_later_requests(
    fleet: Fleet,
) -> None:
    """B72: of the five recoveries that waited during the emergency stop and five new ones, five begin."""
    for n in range(5):
        await fleet.request_recovery(fleet.terminate_worker(f"s{n}"))
    fleet.stop_reason = "drill"
    await fleet.advance(3700)
    fleet.stop_reason = None
    results = [(await fleet.request_recovery(fleet.terminate_worker(f"t{n}"))).accepted for n in range(5)]
    await fleet.advance()
    await fleet.advance()

    assert not any(results)
    assert sorted(task for task, *_ in fleet.respawner.respawns) == [f"s{n}" for n in range(5)]


async def test_attempts_beyond_the_hourly_limit_are_deferred(fleet: Fleet) -> None:
    """B72: attempts requested at the same time are deferred if the limit is reached before they begin."""
    for n in range(5):
        await fleet.request_recovery(fleet.terminate_worker(f"s{n}"))
    fleet.settings = HealthSettings(recovery=Limits(max_attempts_per_hour=2))
    await fleet.restart()
    start_time = fleet.now
    await fleet.advance()
    assert len(fleet.respawner.respawns) == 2
    assert FAILED not in fleet.list_event_types()
    waiting_recoveries = [
        recovery for recovery in fleet.service.active() if recovery.state is RecoveryState.WAITING
    ]
    assert [recovery.not_before for recovery in waiting_recoveries] == [start_time + 3600] * 3
    assert "within the hour" in waiting_recoveries[0].outcome
    await fleet.restart()
    await fleet.advance(3599)
    assert len(fleet.respawner.respawns) == 2
    await fleet.advance(1)
    assert len(fleet.respawner.respawns) == 4
    await fleet.advance(3600)

    assert len(fleet.respawner.respawns) == 5
    assert not any(row["exhausted"] for row in fleet.list_event_data(FAILED))
    assert not any(recovery.outcome for recovery in fleet.service.active())


async def test_unused_hourly_slot_is_free_again(fleet: Fleet) -> None:
    """B72: a recovery that is dropped because the task has finished is not an attempt."""
    fleet.settings = HealthSettings(recovery=Limits(max_attempts_per_hour=1))
    await fleet.restart()
    await fleet.request_recovery()
    fleet.report_event(EventType.EXECUTION_STARTED, "s1", "by-hand")
    await fleet.advance()
    assert (await fleet.list_recoveries())[0].state is RecoveryState.DROPPED
    assert (await fleet.request_recovery(fleet.terminate_worker("s2"))).accepted
    await fleet.advance()

    assert len(fleet.respawner.respawns) == 1
    assert (await fleet.service.status("s2")).left_this_hour == 0


@pytest.mark.parametrize("end", [EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED])
async def test_finished_or_cancelled_work_is_never_restarted(fleet: Fleet, end: EventType) -> None:
    """B70: this holds for a request, and for work that finishes while its recovery waits."""
    fleet.report_event(EventType.EXECUTION_STARTED)
    target = Target(agent_id="bee", session_id="s1", incarnation_id="s1-1")
    waiting_result = await fleet.request_recovery(target, not_before=fleet.now + 60)
    fleet.now += 1
    fleet.report_event(end, error_type="cancelled")
    error = await fleet.service.request(target, "again", by="ladder", task_id="other")
    await fleet.advance(60)

    assert waiting_result.accepted
    assert not error.accepted
    assert fleet.respawner.respawns == []
    [row] = (await fleet.service.status("s1")).history
    assert row.state is RecoveryState.DROPPED
    assert FAILED not in fleet.list_event_types()


async def test_finished_session_on_disk_is_dropped_silently(fleet: Fleet) -> None:
    """B70."""
    fleet.respawner.refusal = RespawnRefusedError("session 's1' is completed", final=True, over=True)
    await fleet.request_recovery()
    await fleet.advance()

    assert (await fleet.list_recoveries())[0].state is RecoveryState.DROPPED
    assert not any(row["exhausted"] for row in fleet.list_event_data(FAILED))


async def test_worker_restarted_by_others_is_not_recovered(fleet: Fleet) -> None:
    """B67."""
    await fleet.request_recovery(not_before=fleet.now + 60)
    fleet.report_event(EventType.EXECUTION_STARTED, "s1", "by-hand")
    await fleet.advance(60)

    assert fleet.respawner.respawns == []


async def test_broken_checkpoints_are_skipped_and_named(fleet: Fleet) -> None:
    """B74."""
    fleet.respawner.links = [
        CheckpointRef(checkpoint_id="c3", created_at=0.0, valid=False, reason="torn"),
        CheckpointRef(checkpoint_id="c2", created_at=0.0, valid=False, reason="torn"),
        CheckpointRef(checkpoint_id="c1", created_at=0.0, valid=True),
    ]
    await fleet.request_recovery()
    await fleet.advance()

    assert fleet.list_event_data(INITIATED)[0]["from_checkpoint"] == "c1"
    assert fleet.list_event_data(INITIATED)[0]["skipped"] == ["c3", "c2"]


TORN_CHECKPOINT = CheckpointRef(checkpoint_id="c1", created_at=0.0, valid=False, reason="torn")


async def test_repeatable_task_without_a_checkpoint_starts_over(fleet: Fleet) -> None:
    """B74, B100."""
    fleet.respawner.links = [TORN_CHECKPOINT]
    await fleet.request_recovery(fleet.terminate_worker(repeatable=True))
    await fleet.advance()

    assert fleet.respawner.respawns[0][1] is None
    assert fleet.list_event_data(INITIATED)[0]["from_checkpoint"] is None
    assert "(c1 invalid); it starts over" in fleet.list_event_data(INITIATED)[0]["reason"]
    assert (await fleet.get_active()).from_start
    assert fleet.list_event_types() == [INITIATED, COMPLETED]


@pytest.mark.parametrize("links", [[], [TORN_CHECKPOINT]], ids=["none", "torn"])
async def test_unrepeatable_task_is_left_to_a_person_with_a_command(
    fleet: Fleet, links: list[CheckpointRef]
) -> None:
    """
    B74, B100: nothing is repeated automatically; the finding names the command that starts the task again.
    """
    fleet.respawner.links = links
    await fleet.request_recovery()
    await fleet.advance()

    assert fleet.respawner.respawns == []
    assert fleet.list_event_types() == [FAILED]
    [failure] = fleet.list_event_data(FAILED)
    assert failure["exhausted"]
    assert "queenright recover s1 --from-start" in failure["reason"]
    worker = fleet.monitor.get("bee", "s1")
    assert worker is not None
    assert [finding.kind for finding in worker.findings if finding.ticket] == ["recovery_failed"]


async def test_task_left_to_a_person_does_not_open_the_agents_breaker(fleet: Fleet) -> None:
    """B74: no start was attempted, so none failed, and the agent's next task is recovered at once."""
    fleet.breakers = BreakerRegistry(
        fleet.settings.circuit_breaker, clock=lambda: fleet.now, monotonic=lambda: fleet.now
    )
    await fleet.restart()
    fleet.respawner.links = []
    for number in range(5):
        await fleet.request_recovery(fleet.terminate_worker(f"t{number}"))
        await fleet.advance()
    assert fleet.respawner.respawns == []

    fleet.respawner.links = [CheckpointRef(checkpoint_id="c1", created_at=0.0, valid=True)]
    await fleet.request_recovery(fleet.terminate_worker("next"))
    await fleet.advance()
    assert [task for task, *_ in fleet.respawner.respawns] == ["next"]


async def test_unresumable_work_does_not_open_the_agents_breaker(fleet: Fleet) -> None:
    """The respawner reports that there is nothing to resume, so no start was attempted."""
    fleet.breakers = BreakerRegistry(
        fleet.settings.circuit_breaker, clock=lambda: fleet.now, monotonic=lambda: fleet.now
    )
    await fleet.restart()
    fleet.respawner.chain_error = RespawnRefusedError("the session was deleted", final=True)
    for number in range(5):
        await fleet.request_recovery(fleet.terminate_worker(f"t{number}"))
        await fleet.advance()
    assert {failure["exhausted"] for failure in fleet.list_event_data(FAILED)} == {True}

    fleet.respawner.chain_error = None
    await fleet.request_recovery(fleet.terminate_worker("next"))
    await fleet.advance()
    assert [task for task, *_ in fleet.respawner.respawns] == ["next"]


async def fail_run(fleet: Fleet, session: str) -> Target:
    fleet.report_event(EventType.EXECUTION_STARTED, session, f"{session}-1")
    fleet.now += 1
    fleet.report_event(EventType.EXECUTION_FAILED, session, f"{session}-1", error_type="Boom")
    return Target(agent_id="bee", session_id=session, incarnation_id=f"{session}-1")


async def test_fourth_consecutive_failed_run_has_a_ticket_and_the_first_has_none(
    fleet: Fleet,
) -> None:
    """B100: nothing starts without a checkpoint; the list of recoveries shows this, with the command."""
    fleet.respawner.links = []
    for number in range(3):
        await fleet.request_recovery(await fail_run(fleet, f"s{number}"))
        await fleet.advance()
    assert fleet.list_event_types() == []
    rows = await fleet.list_recoveries()
    assert {row.state for row in rows} == {RecoveryState.DROPPED}
    assert "queenright recover s2 --from-start" in rows[0].outcome
    assert not any(worker.findings for worker in fleet.monitor.workers())

    await fleet.request_recovery(await fail_run(fleet, "s3"))
    await fleet.advance()
    assert fleet.respawner.respawns == []
    assert fleet.list_event_types() == []
    tickets = {
        failure.kind for worker in fleet.monitor.workers() for failure in worker.findings if failure.ticket
    }
    assert tickets == {"runs_failed"}


async def test_failed_runs_without_a_checkpoint_do_not_count_towards_the_hourly_limit(fleet: Fleet) -> None:
    """
    B100: more runs fail at once than may be recovered in an hour; none is attempted, so none is abandoned.
    """
    fleet.respawner.links = []
    for number in range(8):
        await fleet.request_recovery(await fail_run(fleet, f"s{number}"))
    await fleet.advance()

    assert fleet.list_event_types() == []
    rows = await fleet.list_recoveries()
    assert [row.state for row in rows] == [RecoveryState.DROPPED] * 8
    assert all(f"queenright recover {row.task_id} --from-start" in row.outcome for row in rows)


async def test_recovery_that_waits_is_dropped_when_its_agent_is_unloaded(fleet: Fleet) -> None:
    """B107: the agent was stopped on purpose, so no failed recovery is notified."""
    await fleet.request_recovery(not_before=fleet.now + 60)
    await fleet.service.drop_waiting("other", "its agent was unloaded")
    assert len(fleet.service.active()) == 1
    await fleet.service.drop_waiting("bee", "its agent was unloaded")
    fleet.respawner.is_absent = True
    await fleet.advance(60)

    [row] = await fleet.list_recoveries()
    assert row.state == RecoveryState.DROPPED
    assert fleet.list_event_types() == []


async def test_failed_run_with_only_broken_checkpoints_is_published(fleet: Fleet) -> None:
    """B74: saved work is lost, which is worse than a failed run."""
    fleet.respawner.links = [TORN_CHECKPOINT]
    await fleet.request_recovery(await fail_run(fleet, "s1"))
    await fleet.advance()

    assert [row["exhausted"] for row in fleet.list_event_data(FAILED)] == [True]


async def test_failed_run_with_a_valid_checkpoint_is_recovered(fleet: Fleet) -> None:
    """002 FR-005: a crashed worker is recovered, although its health is not failing."""
    await fleet.request_recovery(await fail_run(fleet, "s1"))
    await fleet.advance()

    assert fleet.list_event_types() == [INITIATED, COMPLETED]
    assert fleet.list_event_data(INITIATED)[0]["from_checkpoint"] == "c1"


async def test_starting_over_needs_an_explicit_request(fleet: Fleet) -> None:
    """
    B100: ``recover`` alone is refused with an error that names the option; the record shows what was allowed.
    """
    fleet.respawner.links = []
    fleet.terminate_worker()

    error = await fleet.service.request_task("s1", by="ada")
    assert not error.accepted
    assert "--from-start" in error.reason
    assert fleet.list_event_types() == []
    assert (await fleet.service.request_task("s1", by="ada", from_start=True)).accepted
    await fleet.advance()

    assert len(fleet.respawner.respawns) == 1
    assert fleet.list_event_data(INITIATED)[0]["may_start_over"] is True
    assert (await fleet.get_active()).may_start_over
    await fleet.fail_worker()
    assert fleet.list_event_data(FAILED)[-1]["exhausted"] is False
    await fleet.advance(60)
    assert len(fleet.respawner.respawns) == 1, "what a person allowed once is not repeated by itself"
    assert fleet.list_event_data(FAILED)[-1]["exhausted"]


async def test_task_completed_by_another_session_is_not_recovered(fleet: Fleet) -> None:
    """B70: since the worker's death, a person has completed its task."""
    target = fleet.terminate_worker(task_id="report")
    fleet.report_event(EventType.EXECUTION_STARTED, "s2", "s2-1", task_id="report")
    fleet.report_event(EventType.EXECUTION_COMPLETED, "s2", "s2-1")

    result = await fleet.request_recovery(target)

    assert not result.accepted
    assert "'s2'" in result.reason


async def test_forgotten_completed_task_is_not_recovered(fleet: Fleet) -> None:
    """B70: the log has the end of the recovered worker."""
    await fleet.request_recovery()
    await fleet.advance()
    for kind in (EventType.EXECUTION_STARTED, EventType.EXECUTION_COMPLETED):
        event = AgentEvent(type=kind, time=fleet.now, agent_id="bee", session_id="s1", incarnation_id="s1-2")
        await fleet.store.transact(partial(append_events, events=[event]))
        fleet.monitor.apply(event, fleet.now)
    await fleet.advance(900)
    fleet.monitor.forget(("bee", "s1"))

    result = await fleet.service.request_task("s1", by="ada")

    assert not result.accepted
    assert "and needs no recovery" in result.reason
    assert len(fleet.respawner.respawns) == 1


async def test_recoveries_of_agents_are_limited_separately(fleet: Fleet) -> None:
    """B101: the hourly limit is per agent, and survives restarts."""
    for n in range(5):
        assert (await fleet.request_recovery(fleet.terminate_worker(f"s{n}"))).accepted
    await fleet.advance()
    await fleet.restart()
    other_result = Target(agent_id="wasp", session_id="w1", incarnation_id="w1-1")

    assert not (await fleet.request_recovery(fleet.terminate_worker("s6"))).accepted
    assert (await fleet.request_recovery(other_result)).accepted
    assert (await fleet.service.status("w1")).left_this_hour == 5


async def test_progress_through_the_watch_is_success(fleet: Fleet) -> None:
    await fleet.request_recovery()
    await fleet.advance()
    fleet.now += 10
    fleet.report_event(EventType.CHECKPOINT_SAVED, "s1", "s1-2")
    await fleet.advance(889)
    assert (await fleet.get_active()).state is RecoveryState.WATCHING
    assert fleet.service.next_deadline() == fleet.now + 1
    await fleet.advance(1)

    [row] = (await fleet.service.status("s1")).history
    assert row.state is RecoveryState.SUCCEEDED


async def test_worker_in_a_long_tool_at_the_end_of_its_watch_has_recovered(fleet: Fleet) -> None:
    """The tool is within its declared timeout, so the worker is healthy."""
    await fleet.request_recovery()
    await fleet.advance()
    fleet.now += 10
    fleet.report_event(EventType.TOOL_CALL_STARTED, "s1", "s1-2", tool="train", call_id="c", timeout=2400.0)
    fleet.now += 889
    fleet.monitor.advance(fleet.now)
    await fleet.advance(1)

    [row] = (await fleet.service.status("s1")).history
    assert (row.state, row.outcome) == (RecoveryState.SUCCEEDED, "it is working")
    assert FAILED not in fleet.list_event_types()


@pytest.mark.parametrize("restarts", [False, True])
async def test_host_sleep_does_not_count_in_the_recovery_watch(fleet: Fleet, restarts: bool) -> None:
    """
    Sleep does not count in a wait either. After a restart, the watch ends early with the worker's current
    state.
    """
    await fleet.request_recovery()
    waits = await fleet.request_recovery(fleet.terminate_worker("s2"), not_before=fleet.now + 60)
    await fleet.advance()
    fleet.now += 10
    fleet.report_event(EventType.LLM_CALL_STARTED, "s1", "s1-2")
    fleet.now += 8 * 3600
    fleet.monitor.handle_clock_jump(fleet.now)
    fleet.service.handle_clock_jump(8 * 3600)
    assert waits.not_before is not None
    if restarts:
        await fleet.restart()
    else:
        assert fleet.service.next_deadline() == waits.not_before + 8 * 3600
    await fleet.advance()

    [row] = (await fleet.service.status("s1")).history
    assert row.state is (RecoveryState.SUCCEEDED if restarts else RecoveryState.WATCHING)
    assert len(fleet.respawner.respawns) == (2 if restarts else 1)
    assert FAILED not in fleet.list_event_types()
    await fleet.advance(890)
    assert (await fleet.service.status("s1")).history[0].state is RecoveryState.SUCCEEDED
    assert len(fleet.respawner.respawns) == 2


async def test_clock_set_back_does_not_extend_a_recovery_watch(fleet: Fleet) -> None:
    await fleet.request_recovery()
    await fleet.advance()
    fleet.now += 10 - 3600
    fleet.monitor.handle_clock_jump(fleet.now)
    fleet.service.handle_clock_jump(-3600)
    assert fleet.service.next_deadline() == fleet.now + 890
    fleet.now += 900
    fleet.monitor.advance(fleet.now)
    worker = fleet.monitor.get("bee", "s1")
    assert worker is not None
    assert worker.state is HealthState.STUCK
    await fleet.service.observe(worker)

    assert (await fleet.get_active()).attempt == 2


async def test_recovered_worker_that_sends_nothing_has_not_recovered(fleet: Fleet) -> None:
    await fleet.request_recovery()
    await fleet.advance()
    fleet.monitor.forget(("bee", "s1"))
    await fleet.advance(900)

    assert fleet.list_event_data(FAILED)[0]["reason"]
    assert (await fleet.get_active()).attempt == 2


async def test_second_termination_is_the_next_attempt(
    fleet: Fleet,
) -> None:
    """The ladder requests a recovery of the recovered incarnation."""
    await fleet.request_recovery()
    await fleet.advance()
    result = await fleet.request_recovery(fleet.terminate_worker())

    assert (result.accepted, result.attempt) == (True, 2)
    assert len(fleet.list_event_data(FAILED)) == 1


async def test_recoveries_wait_during_the_emergency_stop(fleet: Fleet) -> None:
    """B71: due recoveries wait during the stop, and begin when it is released."""
    await fleet.request_recovery()
    fleet.stop_reason = "drill"
    await fleet.advance(1000)
    assert fleet.respawner.respawns == []
    assert fleet.service.next_deadline() is None
    assert (await fleet.service.status("s1")).held == "drill"
    with pytest.raises(ActionRefusedError, match="drill"):
        await fleet.service.request_task("s1", by="operator")
    fleet.stop_reason = None
    await fleet.advance()

    assert len(fleet.respawner.respawns) == 1


async def test_requested_recovery_begins_in_the_quiet_time(fleet: Fleet) -> None:
    """002 §11: automatic recoveries wait after a start; a recovery that a person requests does not."""
    await fleet.request_recovery(fleet.terminate_worker("s1"))
    fleet.terminate_worker("s2")
    assert fleet.service.next_requested() is None
    assert (await fleet.service.request_task("s2", by="ada")).accepted
    assert fleet.service.next_requested() == fleet.now

    await fleet.service.advance(fleet.now, stop=fleet.stop, begin=False)
    await fleet.service.wait_until_idle()
    assert [task for task, *_ in fleet.respawner.respawns] == ["s2"]

    # A deferred recovery also begins if it is requested by its name.
    assert (await fleet.service.request_task("s1", by="ada")).accepted
    await fleet.service.advance(fleet.now, stop=fleet.stop, begin=False)
    await fleet.service.wait_until_idle()
    assert [task for task, *_ in fleet.respawner.respawns] == ["s2", "s1"]
    assert fleet.service.next_requested() is None


async def test_waiting_worker_is_not_recovered(fleet: Fleet) -> None:
    fleet.report_event(EventType.EXECUTION_STARTED)
    fleet.report_event(EventType.WORKER_WAITING, reason="user_input")

    with pytest.raises(ActionRefusedError, match="resume it if its process was killed"):
        await fleet.service.request_task("s1", by="ada")


async def test_attempt_that_cannot_be_started_counts_and_is_tried_again(fleet: Fleet) -> None:
    fleet.respawner.refusal = RespawnRefusedError("the disk is full")
    await fleet.request_recovery()
    await fleet.advance()

    assert fleet.list_event_data(FAILED)[0]["reason"] == "the disk is full"
    fleet.respawner.refusal = None
    await fleet.advance(60)
    assert (await fleet.get_active()).state is RecoveryState.WATCHING
    assert (await fleet.get_active()).attempt == 2


async def test_final_refusal_goes_to_a_person_at_once(fleet: Fleet) -> None:
    fleet.respawner.refusal = RespawnRefusedError("the session was deleted", final=True)
    await fleet.request_recovery()
    await fleet.advance()

    assert fleet.list_event_data(FAILED)[0]["exhausted"]
    assert fleet.service.active() == []


async def test_abandoned_task_that_progressed_can_be_abandoned_again(
    fleet: Fleet,
) -> None:
    """The task's ticket has closed in the meantime, so the operator is notified again, once."""
    fleet.respawner.is_absent = True
    target = fleet.terminate_worker()
    assert not (await fleet.request_recovery(target)).accepted
    assert not (await fleet.request_recovery(target)).accepted
    assert len(fleet.list_event_data(FAILED)) == 1

    fleet.now += 60
    fleet.report_event(EventType.EXECUTION_STARTED)
    fleet.report_event(EventType.STEP_COMPLETED, verdict="ACCEPT")
    target = fleet.terminate_worker()
    assert not next(iter(fleet.monitor.workers())).vitals.has_failed_recovery
    fleet.now += 1
    assert not (await fleet.request_recovery(target)).accepted
    assert not (await fleet.request_recovery(target)).accepted
    assert [row["exhausted"] for row in fleet.list_event_data(FAILED)] == [True, True]
    assert next(iter(fleet.monitor.workers())).vitals.has_failed_recovery


async def test_unreachable_worker_goes_to_a_person_at_once(fleet: Fleet) -> None:
    fleet.respawner.is_absent = True
    result = await fleet.request_recovery()

    assert not result.accepted
    assert "nothing here can start" in result.reason
    assert fleet.list_event_data(FAILED)[0]["exhausted"]
    [finding] = next(iter(fleet.monitor.workers())).findings
    assert finding.evidence.endswith(result.reason)
    assert finding.evidence.endswith("health_monitoring.recovery.webhook_url")


async def test_start_that_takes_too_long_has_failed(fleet: Fleet) -> None:
    fleet.respawner.should_hang = True
    fleet.sleep = resolve_at_once  # type: ignore[method-assign]
    fleet.service._starter._sleep = resolve_at_once
    await fleet.request_recovery()
    await fleet.advance()

    assert "no answer within" in fleet.list_event_data(FAILED)[0]["reason"]


async def resolve_at_once(seconds: float) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_alive", [True, False])
async def test_start_interrupted_by_a_crash_is_not_repeated(fleet: Fleet, is_alive: bool) -> None:
    """The worker's own events show whether it started."""
    fleet.respawner.should_hang = True
    await fleet.request_recovery()
    await fleet.service.advance(fleet.now, stop=fleet.stop)
    await fleet.respawner.respawn_started.wait()
    if is_alive:
        fleet.report_event(EventType.EXECUTION_STARTED, "s1", "s1-2")
    await fleet.restart()

    active = await fleet.get_active()
    assert len(fleet.respawner.respawns) == 1
    if is_alive:
        assert (active.state, active.new_incarnation_id) == (RecoveryState.WATCHING, "s1-2")
        assert fleet.list_event_types() == [INITIATED, COMPLETED]
    else:
        assert (active.state, active.attempt, active.not_before) == (RecoveryState.WAITING, 2, fleet.now + 60)
        assert fleet.list_event_types() == [INITIATED, FAILED]


async def test_waiting_attempt_keeps_waiting_after_a_restart(fleet: Fleet) -> None:
    result = await fleet.request_recovery(not_before=fleet.now + 60)
    [resumed_recovery] = await fleet.restart()

    assert resumed_recovery.recovery_id == result.recovery_id
    assert fleet.service.next_deadline() == result.not_before
    await fleet.advance(60)
    assert len(fleet.respawner.respawns) == 1


async def test_failed_attempt_is_not_repeated_with_automatic_recovery_off(fleet: Fleet) -> None:
    fleet.settings = HealthSettings(recovery=Limits(automatic=False))
    await fleet.restart()
    await fleet.request_recovery()
    await fleet.advance()
    await fleet.fail_worker()

    assert fleet.list_event_data(FAILED)[0]["exhausted"]
    assert fleet.service.active() == []


async def test_open_breaker_defers_an_attempt(fleet: Fleet) -> None:
    """A deferred attempt does not count, and no failure is notified."""
    fleet.breakers = BreakerRegistry(
        fleet.settings.circuit_breaker, clock=lambda: fleet.now, monotonic=lambda: fleet.now
    )
    await fleet.restart()
    breaker = fleet.breakers.get(BreakerKind.RECOVERY, "bee")
    for _ in range(3):
        breaker.admit().record_failure("it fails")
    await fleet.request_recovery()
    await fleet.advance()
    assert fleet.respawner.respawns == []
    assert (await fleet.get_active()).state is RecoveryState.WAITING
    assert FAILED not in fleet.list_event_types()
    await fleet.advance(61)

    assert len(fleet.respawner.respawns) == 1


async def test_task_is_recovered_by_its_name(fleet: Fleet) -> None:
    fleet.terminate_worker()
    result = await fleet.service.request_task("s1", by="ada")

    assert result.accepted
    assert (await fleet.get_active()).by == "ada"


async def test_task_is_recovered_by_the_session_of_its_worker(fleet: Fleet) -> None:
    """B102: a ticket has the session, and its command works for the task."""
    fleet.terminate_worker(task_id="report")
    result = await fleet.service.request_task("s1", by="ada")

    assert result.accepted
    assert (await fleet.get_active()).task_id == "report"
    assert (await fleet.service.status("s1")).task_id == "report"


async def test_unknown_task_is_an_error(fleet: Fleet) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: fleet.service.status("nothing"),
        lambda: fleet.service.request_task("nothing", by="ada"),
    ]
    for call in calls:
        with pytest.raises(TaskNotFoundError, match="queenright list"):
            await call()


async def test_worker_that_runs_must_be_terminated_first(fleet: Fleet) -> None:
    await fleet.request_recovery()
    await fleet.advance()

    with pytest.raises(ActionRefusedError, match=r"terminate bee --session s1 --reason \"\.\.\.\"$"):
        await fleet.service.request_task("s1", by="ada")


@pytest.mark.parametrize(
    ("has_heartbeats", "expected"),
    [
        (True, r"then: queenright recover s1 \(possible 40 s after its last heartbeat\)"),
        (False, "start it where it ran: it sends no heartbeats"),
    ],
)
async def test_unconfirmed_stop_error_says_what_to_do(
    fleet: Fleet, has_heartbeats: bool, expected: str
) -> None:
    fleet.report_event(EventType.EXECUTION_STARTED)
    if has_heartbeats:
        fleet.report_event(EventType.AGENT_HEARTBEAT, interval=20)
    intervention = Intervention(
        intervention_id="i1",
        agent_id="bee",
        session_id="s1",
        incarnation_id="s1-1",
        kind=ActionKind.TERMINATE,
        outcome=Done.UNCONFIRMED,
        by="ada",
        reason="it loops",
        created_at=fleet.now,
    )
    await fleet.store.transact(lambda conn: intervention_table.write(conn, intervention))

    with pytest.raises(ActionRefusedError, match=expected):
        await fleet.service.request_task("s1", by="ada")


async def test_secret_in_a_reason_is_masked(fleet: Fleet) -> None:
    await fleet.service.request(
        fleet.terminate_worker(), "key sk-proj-abcdefghijklmnopqrstuvwxyz012345", by="ada"
    )

    assert "abcdefghij" not in (await fleet.list_recoveries())[0].reason


async def test_stuck_recovered_worker_is_terminated_with_all_checks_before_the_next_attempt(
    fleet: Fleet,
) -> None:
    """B69: recovery itself terminates no worker."""
    await fleet.request_recovery()
    await fleet.advance()
    fleet.now += 900
    for event in fleet.monitor.advance(fleet.now):
        assert event.agent_id == "bee"
    worker = fleet.monitor.get("bee", "s1")
    assert worker is not None
    assert worker.state is HealthState.STUCK
    await fleet.service.observe(worker)
    await fleet.advance(60)

    [(target, reason)] = fleet.stopped_workers
    assert target.incarnation_id == "s1-2"
    assert "stuck" in reason
    assert [attempt for _, _, attempt, _ in fleet.respawner.respawns] == [1, 2]


async def test_store_failure_defers_the_start(fleet: Fleet) -> None:
    """B76: an action that cannot be recorded is not carried out."""
    await fleet.request_recovery()
    healthy, fleet.service._ledger._store = fleet.service._ledger._store, FullDiskStore(fleet.store)
    await fleet.advance()
    assert fleet.respawner.respawns == []
    assert fleet.service.next_deadline() == fleet.now + 5
    fleet.service._ledger._store = healthy
    await fleet.advance(5)

    assert len(fleet.respawner.respawns) == 1
    assert fleet.list_event_types() == [INITIATED, COMPLETED]


class FullDiskStore(Store):
    """A store whose disk is full."""

    def __init__(self, store: Store) -> None:
        self.__dict__.update(store.__dict__)

    def __repr__(self) -> str:
        return "a full disk"

    async def transact(self, fn: Any) -> Any:
        raise StoreError("the disk is full")


@pytest.mark.parametrize("ends", [False, True])
async def test_recovery_is_dropped_if_the_worker_still_runs(fleet: Fleet, ends: bool) -> None:
    """A recovery waits while the worker runs. Once the worker has ended, it is recovered."""
    fleet.report_event(EventType.EXECUTION_STARTED)
    fleet.now += 1
    fleet.report_event(EventType.AGENT_TERMINATED)
    fleet.stop_reason = "drill"
    await fleet.request_recovery(Target(agent_id="bee", session_id="s1", incarnation_id="s1-1"))
    await fleet.advance()
    fleet.now += 300
    fleet.report_event(EventType.TOOL_CALL_STARTED, tool="search")
    if ends:
        fleet.report_event(EventType.EXECUTION_COMPLETED)
    fleet.stop_reason = None
    await fleet.advance(1)

    assert len(fleet.respawner.respawns) == int(ends)
