"""Consecutive failed runs of an agent that runs each night, across restarts of the service."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import create_engine

from queenright.health.findings import FindingKind, Severity
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.store.event_log import append_events
from queenright.health.store.tables import EVENT_LOG_HEAD, METADATA
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.ops.rebuild import rebuild
from queenright.server.service import Service
from queenright.server.settings import Settings
from tests.server.test_clocks import DAY, Clock, ServiceRun, START_TIME
from tests.waiting import until


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(storage=tmp_path / "storage")


def run_events(clock: Clock, session: str, end: EventType, *, agent: str = "nightly") -> list[AgentEvent]:
    """Return the events of one run in its own process, known only by its telemetry."""
    run_fields = {"agent_id": agent, "session_id": session, "incarnation_id": f"{session}-{clock.now:.0f}"}
    failed = {"error_type": "OSError", "error": "the disk is full"}
    return [
        AgentEvent(type=EventType.EXECUTION_STARTED, time=clock.now - 60, data={}, **run_fields),
        AgentEvent(
            type=end, time=clock.now, data=failed if end is EventType.EXECUTION_FAILED else {}, **run_fields
        ),
    ]


def is_notified(service: Service) -> bool:
    tickets = service.tickets.open_tickets()
    return bool(tickets) and all(ticket.status is TicketStatus.INTERVENING for ticket in tickets)


async def run_night(
    settings: Settings, clock: Clock, session: str, end: EventType = EventType.EXECUTION_FAILED
) -> list[EscalationTicket]:
    """Run a new service for a day in which the job runs once; return the open tickets."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest(run_events(clock, session, end))
        await service.bus.drain()
        health = service.monitor.get("nightly")
        if health is not None and any(finding.ticket for finding in health.findings):
            await until(lambda: is_notified(service), "the ticket is triaged")
        tickets = service.tickets.open_tickets()
    clock.now += DAY
    return tickets


@pytest.mark.parametrize("sessions", ["one per run", "one for all"])
async def test_job_failing_four_nights_has_one_ticket_until_it_completes(
    settings: Settings, clock: Clock, sessions: str
) -> None:
    """One failed run pages nobody, the fourth in a row pages once, and no restart resets the count."""
    names = [f"run-{number}" if sessions == "one per run" else "run" for number in range(8)]
    for name in names[:3]:
        assert await run_night(settings, clock, name) == []
    [ticket] = await run_night(settings, clock, names[3])
    assert (ticket.agent_id, ticket.kind, ticket.severity) == (
        "nightly",
        FindingKind.RUNS_FAILED,
        Severity.HIGH,
    )
    assert ticket.finding_evidence.startswith("4 runs")
    for name in names[4:7]:
        [later] = await run_night(settings, clock, name)
        assert later.ticket_id == ticket.ticket_id
    assert later.finding_evidence.startswith("7 runs")

    await run_night(settings, clock, names[7], EventType.EXECUTION_COMPLETED)
    async with ServiceRun(settings, clock) as service:
        await service.tickets.settle(clock.now)
        closed = await service.tickets.find(ticket.ticket_id)
        assert closed is not None
        assert (service.tickets.open_tickets(), closed.status) == ([], TicketStatus.RESOLVED)
    assert await run_night(settings, clock, "after") == []


async def test_settled_failed_runs_restart_the_count_after_a_restart(
    settings: Settings, clock: Clock
) -> None:
    for number in range(4):
        tickets = await run_night(settings, clock, f"run-{number}")
    async with ServiceRun(settings, clock) as service:
        await service.tickets.resolve(tickets[0].ticket_id, "the disk was exchanged", by="ada")
        await service.bus.drain()
        assert not any(worker.fleet_state for worker in service.monitor.workers())
    clock.now += DAY
    for number in range(5, 8):
        assert await run_night(settings, clock, f"run-{number}") == []
    [ticket] = await run_night(settings, clock, "run-8")
    assert ticket.ticket_id != tickets[0].ticket_id


async def test_row_of_failed_runs_is_shown_as_failing_after_a_restart(
    settings: Settings, clock: Clock
) -> None:
    for number in range(4):
        await run_night(settings, clock, f"run-{number}")
    clock.now += 3 * DAY
    async with ServiceRun(settings, clock) as service:
        [failing] = [worker for worker in service.monitor.workers() if worker.fleet_state is not None]
        assert (failing.vitals.session_id, failing.state.value) == ("run-3", "failing")


async def test_telemetry_only_agent_failing_four_times_is_notified_once(
    settings: Settings, clock: Clock
) -> None:
    """The service cannot restart it; it is notified once, and not for each run."""
    async with ServiceRun(settings, clock) as service:
        for number in range(4):
            clock.now += 1
            await service.ingest(run_events(clock, f"run-{number}", EventType.EXECUTION_FAILED))
        await until(lambda: is_notified(service), "the ticket is notified")
        [ticket] = service.tickets.open_tickets()
        for number in range(4, 9):
            clock.now += 1
            await service.ingest(run_events(clock, f"run-{number}", EventType.EXECUTION_FAILED))
        await service.bus.drain()
        events = await service.store.history(types={EventType.QUEEN_INTERVENTION_REQUESTED})
        open_tickets = service.tickets.open_tickets()

    assert [ticket.ticket_id for ticket in open_tickets] == [ticket.ticket_id]
    assert len(events) == 1


@pytest.mark.parametrize("is_reported_first", [EventType.EXECUTION_FAILED, EventType.AGENT_TERMINATED])
@pytest.mark.parametrize("gap", [3600.0, 2 * DAY])
@pytest.mark.parametrize("end", [EventType.EXECUTION_FAILED, EventType.EXECUTION_COMPLETED])
async def test_runs_that_were_terminated_count_neither_before_nor_after_a_restart(
    settings: Settings, clock: Clock, is_reported_first: EventType, gap: float, end: EventType
) -> None:
    """Their last report is a failure or a completion, but the service stopped them."""
    async with ServiceRun(settings, clock) as service:
        for number in range(3):
            await service.ingest(run_events(clock, f"failed-{number}", EventType.EXECUTION_FAILED))
            clock.now += 100
        for number in range(4):
            service.monitor._is_stopping = lambda key, incarnation_id: True
            run_start, ended = run_events(clock, f"stopped-{number}", end)
            terminated = replace(
                run_start,
                id=f"terminated-{number}",
                type=EventType.AGENT_TERMINATED,
                time=ended.time,
                data={},
            )
            await service.ingest([run_start])
            if is_reported_first is EventType.AGENT_TERMINATED:
                await service.bus.publish(terminated)
                await service.ingest([ended])
            else:
                await service.ingest([ended])
                await service.bus.publish(terminated)
            clock.now += 100
        await service.bus.drain()
        assert service.monitor.failed_runs("nightly").count == 3

    clock.now += gap
    async with ServiceRun(settings, clock) as service:
        assert service.monitor.failed_runs("nightly").count == 3
        assert service.tickets.open_tickets() == []
    [ticket] = await run_night(settings, clock, "failed-3")
    assert ticket.finding_evidence.startswith("4 runs")


@pytest.mark.parametrize("gap", [7200.0, 2 * DAY])
async def test_failure_reported_after_a_terminated_run_is_forgotten_never_counts(
    settings: Settings, clock: Clock, gap: float
) -> None:
    """The service stopped the run; this also holds after a restart."""
    run_start, ended = run_events(clock, "run", EventType.EXECUTION_FAILED)
    terminated = replace(run_start, id="terminated", type=EventType.AGENT_TERMINATED, time=clock.now, data={})
    for number in range(3):
        async with ServiceRun(settings, clock) as service:
            if number == 0:
                await service.ingest([run_start])
                await service.bus.publish(terminated)
            clock.now += gap
            await service.ingest([replace(ended, id=f"late-{number}", time=clock.now)])
            await service.bus.drain()
            assert service.monitor.failed_runs("nightly").count == 0
        clock.now += gap


async def test_duplicate_failure_counts_once_across_a_restart(settings: Settings, clock: Clock) -> None:
    """A repeated export of concurrent sessions without execution ids."""
    async with ServiceRun(settings, clock) as service:
        runs = [run_events(clock, f"run-{number}", EventType.EXECUTION_FAILED) for number in range(2)]
        for turn in range(2):
            for run_start, ended in runs:
                repeated = replace(ended, id=f"{ended.session_id}-{turn}", time=clock.now)
                await service.ingest([run_start, repeated] if turn == 0 else [repeated])
                clock.now += 100
        assert service.monitor.failed_runs("nightly").count == 2
    for gap in (3600.0, 2 * DAY):
        clock.now += gap
        async with ServiceRun(settings, clock) as service:
            assert service.monitor.failed_runs("nightly").count == 2


async def test_failures_repeated_after_a_completion_never_count(settings: Settings, clock: Clock) -> None:
    """A repeated failure does not count, also after any restart; one real failure then pages nobody."""
    async with ServiceRun(settings, clock) as service:
        failed = [run_events(clock, f"run-{number}", EventType.EXECUTION_FAILED) for number in range(3)]
        for run in failed:
            await service.ingest(run)
            clock.now += 60
        await service.ingest(run_events(clock, "good", EventType.EXECUTION_COMPLETED))
        for _, ended in failed:
            clock.now += 60
            await service.ingest([replace(ended, id=f"again-{ended.session_id}", time=clock.now)])
        await service.bus.drain()
        assert service.monitor.failed_runs("nightly").count == 0
    for gap in (3600.0, 2 * DAY):
        clock.now += gap
        async with ServiceRun(settings, clock) as service:
            assert service.monitor.failed_runs("nightly").count == 0
    assert await run_night(settings, clock, "one-real") == []


async def test_repeated_completion_hides_no_failures(settings: Settings, clock: Clock) -> None:
    """It belongs to an earlier run."""
    async with ServiceRun(settings, clock) as service:
        good = run_events(clock, "good", EventType.EXECUTION_COMPLETED)
        await service.ingest(good)
        for number in range(3):
            clock.now += 60
            await service.ingest(run_events(clock, f"run-{number}", EventType.EXECUTION_FAILED))
        clock.now += 60
        await service.ingest([replace(good[1], id="again", time=clock.now)])
        await service.bus.drain()
        assert service.monitor.failed_runs("nightly").count == 3
    for gap in (3600.0, 2 * DAY):
        clock.now += gap
        async with ServiceRun(settings, clock) as service:
            assert service.monitor.failed_runs("nightly").count == 3


@pytest.mark.parametrize("late", [0.0, 30.0, 59.0, 61.0, 500.0])
@pytest.mark.parametrize("end", [EventType.EXECUTION_FAILED, EventType.EXECUTION_COMPLETED])
def test_run_reported_late_in_one_batch_has_ended(clock: Clock, late: float, end: EventType) -> None:
    """B23: its start is too old to trust the sender's clock; its end is not."""
    monitor = HealthMonitor(HealthSettings())
    for event in run_events(clock, "run", end):
        monitor.apply(event, clock.now + late)
    [worker] = monitor.workers()
    assert worker.vitals.status.value == end.value.removeprefix("execution_")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "work", "fail", "fail", "complete", "cancel", "terminate", "again"]),
        st.integers(0, 4),
        st.sampled_from([1.0, 30.0, 100.0, 1000.0]),
    ),
    max_size=30,
)
ENDS = {
    "fail": (EventType.EXECUTION_FAILED, {"error_type": "OSError"}),
    "complete": (EventType.EXECUTION_COMPLETED, {}),
    "cancel": (EventType.EXECUTION_FAILED, {"error_type": "CancelledError"}),
    "terminate": (EventType.EXECUTION_FAILED, {"error_type": "SystemExit"}),
}


@given(STEPS, st.booleans(), st.floats(0, 2 * DAY))
@example([("fail", 0, 30.0), ("complete", 1, 30.0), ("again", 0, 30.0)], True, 2 * DAY)
@example([("complete", 1, 1.0), ("fail", 0, 1.0), ("work", 1, 1.0), ("complete", 1, 1.0)], False, 2 * DAY)
@example([("fail", 0, 1.0), ("work", 0, 1.0), ("fail", 0, 1.0)], False, 2 * DAY)
@example([("terminate", 0, 30.0), *[("work", 1, 1000.0)] * 4, ("fail", 0, 30.0)], False, 0.0)
def test_failed_runs_are_the_same_after_a_restart(
    steps: list[tuple[str, int, float]], with_incarnations: bool, away: float
) -> None:
    """For any outcomes, repeated reports and restart times."""
    now, log, lives = START_TIME, list[AgentEvent](), [1] * 5
    last_ends: list[AgentEvent | None] = [None] * 5
    terminated = set[int]()
    is_stopping = False
    monitor = HealthMonitor(HealthSettings(), is_stopping=lambda key, incarnation_id: is_stopping)

    def make_event(kind: EventType, number: int, **data: object) -> AgentEvent:
        result = AgentEvent(
            type=kind,
            time=now,
            agent_id="nightly",
            session_id=f"run-{number}",
            incarnation_id=f"run-{number}-{lives[number]}" if with_incarnations else "",
            data=data,
        )
        log.append(result)
        monitor.apply(result, now)
        return result

    for action, number, seconds in steps:
        now += seconds
        if action == "begin":
            lives[number] += 1
            last_ends[number] = None
            terminated.discard(number)
            make_event(EventType.EXECUTION_STARTED, number)
        elif action == "work" and number not in terminated:
            make_event(EventType.STEP_COMPLETED, number, verdict="ACCEPT")
        elif action in ("work", "again") or (action == "terminate" and last_ends[number] is not None):
            if action == "again" and (end := last_ends[number]) is not None:
                log.append(replace(end, id=f"{len(log)}", time=now))
                monitor.apply(log[-1], now)
        else:
            kind, data = ENDS[action]
            is_stopping = action == "terminate"
            end = make_event(kind, number, **data)
            if action == "terminate":
                make_event(EventType.AGENT_TERMINATED, number)
                terminated.add(number)
            else:
                last_ends[number] = end

    rebuilt = HealthMonitor(HealthSettings())
    engine = create_engine("sqlite://")
    with engine.begin() as conn:
        METADATA.create_all(conn)
        conn.execute(EVENT_LOG_HEAD.insert().values(id=1, length=0, hash=bytes(32)))
        append_events(conn, log)
        rebuild(conn, rebuilt, since=now + away - DAY, now=now + away)
    engine.dispose()
    assert rebuilt.failed_runs("nightly").count == monitor.failed_runs("nightly").count
