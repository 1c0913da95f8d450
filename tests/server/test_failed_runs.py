"""Consecutive failed runs of an agent that runs every night, across restarts of the service."""

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
from queenright.server.ops.rebuild import rebuild_workers
from queenright.server.service import Service
from queenright.server.settings import Settings
from tests.server.test_clocks import DAY, START_TIME, Clock, ServiceRun
from tests.waiting import until


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(storage=tmp_path / "storage")


def make_run_events(
    clock: Clock, session: str, end_type: EventType, *, agent: str = "nightly"
) -> list[AgentEvent]:
    """Return the events of one run in a separate process, which is known only by its telemetry."""
    run_fields = {"agent_id": agent, "session_id": session, "incarnation_id": f"{session}-{clock.now:.0f}"}
    failure_fields = {"error_type": "OSError", "error": "the disk is full"}
    return [
        AgentEvent(type=EventType.EXECUTION_STARTED, time=clock.now - 60, data={}, **run_fields),
        AgentEvent(
            type=end_type,
            time=clock.now,
            data=failure_fields if end_type is EventType.EXECUTION_FAILED else {},
            **run_fields,
        ),
    ]


def is_notified(service: Service) -> bool:
    tickets = service.tickets.open_tickets()
    return bool(tickets) and all(ticket.status is TicketStatus.INTERVENING for ticket in tickets)


async def run_night(
    settings: Settings, clock: Clock, session: str, end_type: EventType = EventType.EXECUTION_FAILED
) -> list[EscalationTicket]:
    """Run a new service for a day in which the job runs once, and return the open tickets."""
    async with ServiceRun(settings, clock) as service:
        await service.ingest(make_run_events(clock, session, end_type))
        await service.bus.drain()
        health = service.monitor.get("nightly")
        if health is not None and any(finding.ticket for finding in health.findings):
            await until(lambda: is_notified(service), "the ticket is triaged")
        tickets = service.tickets.open_tickets()
    clock.now += DAY
    return tickets


@pytest.mark.parametrize("sessions", ["one session per run", "one session for all runs"])
async def test_job_failing_four_nights_has_one_ticket_until_it_completes(
    settings: Settings, clock: Clock, sessions: str
) -> None:
    """One failed run pages nobody, the fourth in a row pages once, and no restart resets the count."""
    names = [f"run-{number}" if sessions == "one session per run" else "run" for number in range(8)]
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
        [later_ticket] = await run_night(settings, clock, name)
        assert later_ticket.ticket_id == ticket.ticket_id
    assert later_ticket.finding_evidence.startswith("7 runs")

    await run_night(settings, clock, names[7], EventType.EXECUTION_COMPLETED)
    async with ServiceRun(settings, clock) as service:
        await service.tickets.settle(clock.now)
        closed_ticket = await service.tickets.find(ticket.ticket_id)
        assert closed_ticket is not None
        assert (service.tickets.open_tickets(), closed_ticket.status) == ([], TicketStatus.RESOLVED)
    assert await run_night(settings, clock, "after") == []


async def test_resolved_failed_runs_restart_the_count_after_a_restart(
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


async def test_agent_with_consecutive_failed_runs_is_failing_after_a_restart(
    settings: Settings, clock: Clock
) -> None:
    for number in range(4):
        await run_night(settings, clock, f"run-{number}")
    clock.now += 3 * DAY
    async with ServiceRun(settings, clock) as service:
        [failing_workers] = [worker for worker in service.monitor.workers() if worker.fleet_state is not None]
        assert (failing_workers.vitals.session_id, failing_workers.state.value) == ("run-3", "failing")


async def test_agent_known_only_by_telemetry_is_notified_once_after_four_failures(
    settings: Settings, clock: Clock
) -> None:
    """The service cannot restart such an agent. It notifies once, not for each run."""
    async with ServiceRun(settings, clock) as service:
        for number in range(4):
            clock.now += 1
            await service.ingest(make_run_events(clock, f"run-{number}", EventType.EXECUTION_FAILED))
        await until(lambda: is_notified(service), "the ticket is notified")
        [ticket] = service.tickets.open_tickets()
        for number in range(4, 9):
            clock.now += 1
            await service.ingest(make_run_events(clock, f"run-{number}", EventType.EXECUTION_FAILED))
        await service.bus.drain()
        events = await service.store.history(types={EventType.QUEEN_INTERVENTION_REQUESTED})
        open_tickets = service.tickets.open_tickets()

    assert [ticket.ticket_id for ticket in open_tickets] == [ticket.ticket_id]
    assert len(events) == 1


@pytest.mark.parametrize("is_reported_first", [EventType.EXECUTION_FAILED, EventType.AGENT_TERMINATED])
@pytest.mark.parametrize("gap", [3600.0, 2 * DAY])
@pytest.mark.parametrize("end_type", [EventType.EXECUTION_FAILED, EventType.EXECUTION_COMPLETED])
async def test_terminated_runs_count_neither_before_nor_after_a_restart(
    settings: Settings, clock: Clock, is_reported_first: EventType, gap: float, end_type: EventType
) -> None:
    """Their last report is a failure or a completion, but the service stopped them."""
    async with ServiceRun(settings, clock) as service:
        for number in range(3):
            await service.ingest(make_run_events(clock, f"failed-{number}", EventType.EXECUTION_FAILED))
            clock.now += 100
        for number in range(4):
            service.monitor._is_stopping = lambda key, incarnation_id: True
            run_start, run_end = make_run_events(clock, f"stopped-{number}", end_type)
            termination = replace(
                run_start,
                id=f"terminated-{number}",
                type=EventType.AGENT_TERMINATED,
                time=run_end.time,
                data={},
            )
            await service.ingest([run_start])
            if is_reported_first is EventType.AGENT_TERMINATED:
                await service.bus.publish(termination)
                await service.ingest([run_end])
            else:
                await service.ingest([run_end])
                await service.bus.publish(termination)
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
async def test_late_failure_of_a_terminated_run_never_counts(
    settings: Settings, clock: Clock, gap: float
) -> None:
    """The service stopped the run. This also holds after a restart."""
    run_start, run_end = make_run_events(clock, "run", EventType.EXECUTION_FAILED)
    termination = replace(
        run_start, id="terminated", type=EventType.AGENT_TERMINATED, time=clock.now, data={}
    )
    for number in range(3):
        async with ServiceRun(settings, clock) as service:
            if number == 0:
                await service.ingest([run_start])
                await service.bus.publish(termination)
            clock.now += gap
            await service.ingest([replace(run_end, id=f"late-{number}", time=clock.now)])
            await service.bus.drain()
            assert service.monitor.failed_runs("nightly").count == 0
        clock.now += gap


async def test_duplicate_failure_counts_once_across_a_restart(settings: Settings, clock: Clock) -> None:
    """Concurrent sessions without execution ids export their failures again."""
    async with ServiceRun(settings, clock) as service:
        runs = [make_run_events(clock, f"run-{number}", EventType.EXECUTION_FAILED) for number in range(2)]
        for turn in range(2):
            for run_start, run_end in runs:
                repeated_end = replace(run_end, id=f"{run_end.session_id}-{turn}", time=clock.now)
                await service.ingest([run_start, repeated_end] if turn == 0 else [repeated_end])
                clock.now += 100
        assert service.monitor.failed_runs("nightly").count == 2
    for gap in (3600.0, 2 * DAY):
        clock.now += gap
        async with ServiceRun(settings, clock) as service:
            assert service.monitor.failed_runs("nightly").count == 2


async def test_failures_repeated_after_a_completion_never_count(settings: Settings, clock: Clock) -> None:
    """A repeated failure does not count, even after a restart. One real failure after that pages nobody."""
    async with ServiceRun(settings, clock) as service:
        failed_runs = [
            make_run_events(clock, f"run-{number}", EventType.EXECUTION_FAILED) for number in range(3)
        ]
        for run in failed_runs:
            await service.ingest(run)
            clock.now += 60
        await service.ingest(make_run_events(clock, "good", EventType.EXECUTION_COMPLETED))
        for _, run_end in failed_runs:
            clock.now += 60
            await service.ingest([replace(run_end, id=f"again-{run_end.session_id}", time=clock.now)])
        await service.bus.drain()
        assert service.monitor.failed_runs("nightly").count == 0
    for gap in (3600.0, 2 * DAY):
        clock.now += gap
        async with ServiceRun(settings, clock) as service:
            assert service.monitor.failed_runs("nightly").count == 0
    assert await run_night(settings, clock, "one-real") == []


async def test_repeated_completion_hides_no_failures(settings: Settings, clock: Clock) -> None:
    """The repeated completion belongs to an earlier run."""
    async with ServiceRun(settings, clock) as service:
        completed_run = make_run_events(clock, "good", EventType.EXECUTION_COMPLETED)
        await service.ingest(completed_run)
        for number in range(3):
            clock.now += 60
            await service.ingest(make_run_events(clock, f"run-{number}", EventType.EXECUTION_FAILED))
        clock.now += 60
        await service.ingest([replace(completed_run[1], id="again", time=clock.now)])
        await service.bus.drain()
        assert service.monitor.failed_runs("nightly").count == 3
    for gap in (3600.0, 2 * DAY):
        clock.now += gap
        async with ServiceRun(settings, clock) as service:
            assert service.monitor.failed_runs("nightly").count == 3


@pytest.mark.parametrize("delay", [0.0, 30.0, 59.0, 61.0, 500.0])
@pytest.mark.parametrize("end_type", [EventType.EXECUTION_FAILED, EventType.EXECUTION_COMPLETED])
def test_run_reported_late_in_one_batch_has_ended(clock: Clock, delay: float, end_type: EventType) -> None:
    """B23: its start is too old for the sender's clock to be trusted, but its end is not."""
    monitor = HealthMonitor(HealthSettings())
    for event in make_run_events(clock, "run", end_type):
        monitor.apply(event, clock.now + delay)
    [worker] = monitor.workers()
    assert worker.vitals.status.value == end_type.value.removeprefix("execution_")


STEP_LISTS = st.lists(
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


@given(STEP_LISTS, st.booleans(), st.floats(0, 2 * DAY))
@example([("fail", 0, 30.0), ("complete", 1, 30.0), ("again", 0, 30.0)], True, 2 * DAY)
@example([("complete", 1, 1.0), ("fail", 0, 1.0), ("work", 1, 1.0), ("complete", 1, 1.0)], False, 2 * DAY)
@example([("fail", 0, 1.0), ("work", 0, 1.0), ("fail", 0, 1.0)], False, 2 * DAY)
@example([("terminate", 0, 30.0), *[("work", 1, 1000.0)] * 4, ("fail", 0, 30.0)], False, 0.0)
def test_failed_runs_are_the_same_after_a_restart(
    steps: list[tuple[str, int, float]], with_incarnations: bool, downtime: float
) -> None:
    """This holds for any outcomes, repeated reports and restart times."""
    clock_time, log, incarnations = START_TIME, list[AgentEvent](), [1] * 5
    last_ends: list[AgentEvent | None] = [None] * 5
    terminated_numbers = set[int]()
    is_stopping = False
    monitor = HealthMonitor(HealthSettings(), is_stopping=lambda key, incarnation_id: is_stopping)

    def make_event(kind: EventType, number: int, **data: object) -> AgentEvent:
        result = AgentEvent(
            type=kind,
            time=clock_time,
            agent_id="nightly",
            session_id=f"run-{number}",
            incarnation_id=f"run-{number}-{incarnations[number]}" if with_incarnations else "",
            data=data,
        )
        log.append(result)
        monitor.apply(result, clock_time)
        return result

    for action, number, seconds in steps:
        clock_time += seconds
        if action == "begin":
            incarnations[number] += 1
            last_ends[number] = None
            terminated_numbers.discard(number)
            make_event(EventType.EXECUTION_STARTED, number)
        elif action == "work" and number not in terminated_numbers:
            make_event(EventType.STEP_COMPLETED, number, verdict="ACCEPT")
        elif action in ("work", "again") or (action == "terminate" and last_ends[number] is not None):
            if action == "again" and (end_event := last_ends[number]) is not None:
                log.append(replace(end_event, id=f"{len(log)}", time=clock_time))
                monitor.apply(log[-1], clock_time)
        else:
            kind, data = ENDS[action]
            is_stopping = action == "terminate"
            end_event = make_event(kind, number, **data)
            if action == "terminate":
                make_event(EventType.AGENT_TERMINATED, number)
                terminated_numbers.add(number)
            else:
                last_ends[number] = end_event

    rebuilt = HealthMonitor(HealthSettings())
    engine = create_engine("sqlite://")
    with engine.begin() as conn:
        METADATA.create_all(conn)
        conn.execute(EVENT_LOG_HEAD.insert().values(id=1, length=0, hash=bytes(32)))
        append_events(conn, log)
        rebuild_workers(conn, rebuilt, since=clock_time + downtime - DAY, now=clock_time + downtime)
    engine.dispose()
    assert rebuilt.failed_runs("nightly").count == monitor.failed_runs("nightly").count
