"""B100: runs of an agent that fail one after the other, a night apart, over restarts of the service."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets import EscalationTicket, TicketStatus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.service import Service
from queenright.server.settings import Settings
from tests.server.test_clocks import DAY, Clock, Life
from tests.waiting import until


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(storage=tmp_path / "storage")


def job(clock: Clock, session: str, end: EventType, *, agent: str = "nightly") -> list[AgentEvent]:
    """One run of an agent in a process of its own, known by its telemetry only."""
    who = {"agent_id": agent, "session_id": session, "incarnation_id": f"{session}-{clock.now:.0f}"}
    failed = {"error_type": "OSError", "error": "the disk is full"}
    return [
        AgentEvent(type=EventType.EXECUTION_STARTED, time=clock.now - 60, data={}, **who),
        AgentEvent(type=end, time=clock.now, data=failed if end is EventType.EXECUTION_FAILED else {}, **who),
    ]


def is_told(service: Service) -> bool:
    tickets = service.tickets.open_tickets()
    return bool(tickets) and all(one.status is TicketStatus.INTERVENING for one in tickets)


async def night(
    settings: Settings, clock: Clock, session: str, end: EventType = EventType.EXECUTION_FAILED
) -> list[EscalationTicket]:
    """A night of a service that is started anew for it: the job runs, and a day passes; the open tickets."""
    async with Life(settings, clock) as service:
        await service.ingest(job(clock, session, end))
        await service.bus.drain()
        health = service.monitor.get("nightly")
        if health is not None and any(finding.ticket for finding in health.findings):
            await until(lambda: is_told(service), "its ticket is triaged")
        tickets = service.tickets.open_tickets()
    clock.now += DAY
    return tickets


@pytest.mark.parametrize("sessions", ["each its own", "one for all"])
async def test_job_that_fails_four_nights_has_one_ticket_until_it_completes(
    settings: Settings, clock: Clock, sessions: str
) -> None:
    """One failed run is nobody's page; the fourth in a row is, once; and no restart forgets the count."""
    names = [f"run-{number}" if sessions == "each its own" else "run" for number in range(8)]
    for name in names[:3]:
        assert await night(settings, clock, name) == []
    [ticket] = await night(settings, clock, names[3])
    assert (ticket.worker_agent_id, ticket.kind, ticket.severity) == (
        "nightly",
        FindingKind.RUNS_FAILED,
        Severity.HIGH,
    )
    assert ticket.finding_evidence == "4 runs of the agent have failed in a row"
    for name in names[4:7]:
        [later] = await night(settings, clock, name)
        assert later.ticket_id == ticket.ticket_id
    assert later.finding_evidence == "7 runs of the agent have failed in a row"

    await night(settings, clock, names[7], EventType.EXECUTION_COMPLETED)
    async with Life(settings, clock) as service:
        await service.tickets.settle(clock.now)
        closed = await service.tickets.find(ticket.ticket_id)
        assert closed is not None
        assert (service.tickets.open_tickets(), closed.status) == ([], TicketStatus.RESOLVED)
    assert await night(settings, clock, "after") == []


async def test_failed_runs_that_a_person_has_settled_are_counted_anew_after_a_restart(
    settings: Settings, clock: Clock
) -> None:
    for number in range(4):
        tickets = await night(settings, clock, f"run-{number}")
    async with Life(settings, clock) as service:
        await service.tickets.resolve(tickets[0].ticket_id, "the disk was exchanged", by="ada")
        await service.bus.drain()
        assert not any(one.standing for one in service.monitor.workers())
    clock.now += DAY
    for number in range(5, 8):
        assert await night(settings, clock, f"run-{number}") == []
    [ticket] = await night(settings, clock, "run-8")
    assert ticket.ticket_id != tickets[0].ticket_id


async def test_row_of_failed_runs_is_shown_as_failing_after_a_restart(
    settings: Settings, clock: Clock
) -> None:
    for number in range(4):
        await night(settings, clock, f"run-{number}")
    clock.now += 3 * DAY
    async with Life(settings, clock) as service:
        [failing] = [one for one in service.monitor.workers() if one.standing is not None]
        assert (failing.vitals.session_id, failing.state.value) == ("run-3", "failing")


async def test_agent_known_by_telemetry_alone_that_fails_four_times_is_told_once(
    settings: Settings, clock: Clock
) -> None:
    """Nobody here can start it again; somebody must hear of it, and not once a run."""
    async with Life(settings, clock) as service:
        for number in range(4):
            clock.now += 1
            await service.ingest(job(clock, f"run-{number}", EventType.EXECUTION_FAILED))
        await until(lambda: is_told(service), "people are told")
        [ticket] = service.tickets.open_tickets()
        for number in range(4, 9):
            clock.now += 1
            await service.ingest(job(clock, f"run-{number}", EventType.EXECUTION_FAILED))
        await service.bus.drain()
        events = await service.store.history(types={EventType.QUEEN_INTERVENTION_REQUESTED})
        open_tickets = service.tickets.open_tickets()

    assert [one.ticket_id for one in open_tickets] == [ticket.ticket_id]
    assert len(events) == 1


@pytest.mark.parametrize("told_first", [EventType.EXECUTION_FAILED, EventType.AGENT_TERMINATED])
@pytest.mark.parametrize("gap", [3600.0, 2 * DAY])
@pytest.mark.parametrize("end", [EventType.EXECUTION_FAILED, EventType.EXECUTION_COMPLETED])
async def test_runs_that_were_terminated_count_neither_before_nor_after_a_restart(
    settings: Settings, clock: Clock, told_first: EventType, gap: float, end: EventType
) -> None:
    """B100: their last word is a failure, or that they are done; it was the service that stopped them."""
    async with Life(settings, clock) as service:
        for number in range(3):
            await service.ingest(job(clock, f"failed-{number}", EventType.EXECUTION_FAILED))
            clock.now += 100
        for number in range(4):
            service.monitor.is_stopping = lambda key, incarnation: True
            begun, ended = job(clock, f"stopped-{number}", end)
            terminated = replace(
                begun, id=f"terminated-{number}", type=EventType.AGENT_TERMINATED, time=ended.time, data={}
            )
            await service.ingest([begun])
            if told_first is EventType.AGENT_TERMINATED:
                await service.bus.publish(terminated)
                await service.ingest([ended])
            else:
                await service.ingest([ended])
                await service.bus.publish(terminated)
            clock.now += 100
        await service.bus.drain()
        assert service.monitor.failed_runs("nightly").count == 3

    clock.now += gap
    async with Life(settings, clock) as service:
        assert service.monitor.failed_runs("nightly").count == 3
        assert service.tickets.open_tickets() == []
    [ticket] = await night(settings, clock, "failed-3")
    assert ticket.finding_evidence == "4 runs of the agent have failed in a row"


async def test_failure_that_is_told_twice_counts_once_before_and_after_a_restart(
    settings: Settings, clock: Clock
) -> None:
    """B100: an export that was sent again, of sessions that run side by side, without execution ids."""
    async with Life(settings, clock) as service:
        runs = [job(clock, f"run-{number}", EventType.EXECUTION_FAILED) for number in range(2)]
        for turn in range(2):
            for begun, ended in runs:
                again = replace(ended, id=f"{ended.session_id}-{turn}", time=clock.now)
                await service.ingest([begun, again] if turn == 0 else [again])
                clock.now += 100
        assert service.monitor.failed_runs("nightly").count == 2
    for gap in (3600.0, 2 * DAY):
        clock.now += gap
        async with Life(settings, clock) as service:
            assert service.monitor.failed_runs("nightly").count == 2
