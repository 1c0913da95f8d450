"""
B125: a person or Queenright closes the ticket of a dead worker; later incarnations have their own tickets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from queenright.health.findings import Severity
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings, TicketSettings
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import EscalationTicket, TicketDraft, TicketStatus, TicketStatusError
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import AgentEvent, EventType

DAY = 86_400.0
STARTED, HEARTBEAT = EventType.EXECUTION_STARTED, EventType.AGENT_HEARTBEAT


class TicketFixture:
    """A monitor and the tickets of its workers, on a simulated clock."""

    def __init__(self, url: str) -> None:
        self.now = 1_000_000.0
        self.settings = HealthSettings(tickets=TicketSettings(dead_worker_seconds=DAY))
        self.monitor = HealthMonitor(self.settings)
        self.store = Store.open(url)
        self.changed_tickets: list[EscalationTicket] = []
        self.tickets = TicketService(
            self.store,
            settings=self.settings,
            clock=lambda: self.now,
            publish=self.publish,
            on_change=lambda conn, ticket: self.changed_tickets.append(ticket),
            dead_from=self.monitor.dead_from,
        )

    def publish(self, *events: AgentEvent) -> None:
        for event in events:
            self.monitor.apply(event, self.now)

    def report_event(self, type_: EventType, incarnation: str = "i1", **data: Any) -> None:
        event = AgentEvent(
            type=type_, time=self.now, agent_id="bee", session_id="s1", incarnation_id=incarnation, data=data
        )
        self.monitor.apply(event, self.now)

    @property
    def worker(self) -> WorkerHealth:
        worker = self.monitor.get("bee", "s1")
        assert worker is not None
        return worker

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock, the monitor and the tickets."""
        self.now += seconds
        self.monitor.advance(self.now)
        await self.tickets.observe(self.worker)

    async def kill_worker(self, **start_fields: Any) -> EscalationTicket:
        """Kill a worker in a step: it is stalled, its heartbeats are missing, and people are notified."""
        self.report_event(STARTED, start_records=True, **start_fields)
        self.report_event(EventType.STEP_STARTED)
        return await self.open_intervening_ticket()

    async def open_intervening_ticket(self) -> EscalationTicket:
        await self.pass_time(900)
        ticket = await self.raise_low_ticket()
        return await self.tickets.intervene(ticket.ticket_id, "it is dead", "now")

    async def raise_low_ticket(self) -> EscalationTicket:
        draft = TicketDraft(
            severity=Severity.LOW,
            cause="it is silent",
            judge_reasoning="nothing was heard",
            suggested_action="look",
            evidence_snippet="",
        )
        return (await self.tickets.raise_ticket(self.worker, draft)).ticket


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[TicketFixture]:
    service = TicketFixture(database_url)
    yield service
    await service.store.close()


@pytest.mark.parametrize("start_fields", [{"heartbeat_interval": 300.0}, {}], ids=["beats", "no-heartbeats"])
async def test_ticket_of_a_dead_worker_is_resolved_by_a_person(
    service: TicketFixture, start_fields: dict[str, Any]
) -> None:
    ticket = await service.kill_worker(**start_fields)
    assert ticket.severity == "critical"

    resolved_ticket = await service.tickets.resolve(ticket.ticket_id, "killed on purpose", by="ada")

    assert (resolved_ticket.status, resolved_ticket.closed_reason) == (
        TicketStatus.RESOLVED,
        "ada: killed on purpose",
    )
    assert service.changed_tickets[-1].status is TicketStatus.RESOLVED, "the page ends"
    assert service.worker.vitals.status is WorkerStatus.UNKNOWN
    assert service.worker.findings == ()
    assert not service.worker.state.is_in_trouble


async def test_ticket_of_a_dead_worker_closes_by_itself_after_the_set_time(service: TicketFixture) -> None:
    ticket = await service.kill_worker(heartbeat_interval=300.0)
    dead_since = 1_000_000.0 + 600.0

    await service.pass_time(dead_since + DAY - 1 - service.now)
    assert service.tickets.get(ticket.ticket_id) in service.tickets.open_tickets()
    await service.pass_time(1)

    closed_ticket = service.tickets.get(ticket.ticket_id)
    assert closed_ticket is not None
    assert closed_ticket.status == TicketStatus.WORKER_GONE
    assert (service.worker.vitals.status, service.worker.vitals.ended_at) == (
        WorkerStatus.UNKNOWN,
        dead_since + DAY,
    )


async def test_ticket_of_a_live_worker_cannot_be_resolved(service: TicketFixture) -> None:
    """The worker hangs but sends heartbeats, so it must be terminated first."""
    service.report_event(STARTED, start_records=True, heartbeat_interval=300.0)
    service.report_event(EventType.STEP_STARTED)
    await service.pass_time(300)
    service.report_event(HEARTBEAT)
    await service.pass_time(300)
    service.report_event(HEARTBEAT)
    ticket = await service.raise_low_ticket()

    with pytest.raises(TicketStatusError, match="queenright terminate bee"):
        await service.tickets.resolve(ticket.ticket_id, "tired of it", by="ada")
    assert service.worker.vitals.ended_at is None


@pytest.mark.parametrize("close", ["resolve", "dismiss"])
async def test_refusal_says_when_a_killed_workers_ticket_can_be_closed(
    service: TicketFixture, close: str
) -> None:
    """B125: a hanging worker is killed after the notification, so only missing heartbeats show its end."""
    service.report_event(STARTED, start_records=True, heartbeat_interval=300.0)
    service.report_event(EventType.STEP_STARTED)
    await service.pass_time(300)
    service.report_event(HEARTBEAT)
    await service.pass_time(5)
    ticket = await service.raise_low_ticket()
    await service.tickets.intervene(ticket.ticket_id, "it hangs", "now")
    close_ticket = service.tickets.resolve if close == "resolve" else service.tickets.dismiss

    with pytest.raises(TicketStatusError) as error:
        await close_ticket(ticket.ticket_id, "killed on purpose", by="ada")

    assert "1970-01-12 14:01:40 UTC" in str(error.value)
    for other_reason in ("its worker lives", "an operator has it"):
        assert other_reason not in str(error.value)
    await service.pass_time(1_000_000 + 300 + 600 - service.now)
    resolved_ticket = await service.tickets.resolve(ticket.ticket_id, "killed on purpose", by="ada")
    assert resolved_ticket.status is TicketStatus.RESOLVED


@pytest.mark.parametrize("event_type", [HEARTBEAT, EventType.STEP_STARTED])
async def test_worker_presumed_dead_is_watched_again_after_an_event(
    service: TicketFixture, event_type: EventType
) -> None:
    """The worker was disconnected. Its next events are applied, and its next stall has its own ticket."""
    first = await service.kill_worker(heartbeat_interval=300.0)
    await service.tickets.resolve(first.ticket_id, "it is gone", by="ada")
    service.now += 5
    service.report_event(event_type)
    assert service.worker.vitals.ended_at is None

    second = await service.open_intervening_ticket()

    assert second.ticket_id != first.ticket_id
    assert second.is_live


@pytest.mark.parametrize("closing", ["resolved", "dismissed", "by itself"])
async def test_next_incarnation_of_a_dead_worker_has_its_own_tickets(
    service: TicketFixture, closing: str
) -> None:
    """The same condition in the same session opens a new ticket."""
    if closing == "dismissed":  # healthy at that time: the process is silent but does not wait
        service.report_event(STARTED, heartbeat_interval=30.0)
        await service.pass_time(150)
        ticket = await service.raise_low_ticket()
        await service.tickets.dismiss(ticket.ticket_id, "a laptop that sleeps", by="ada")
    else:
        ticket = await service.kill_worker(heartbeat_interval=300.0)
    if closing == "resolved":
        await service.tickets.resolve(ticket.ticket_id, "seen to", by="ada")
    elif closing == "by itself":
        await service.pass_time(DAY)
    service.now += 5
    service.report_event(STARTED, "i2", start_records=True, heartbeat_interval=300.0)
    service.report_event(EventType.STEP_STARTED, "i2")
    await service.tickets.observe(service.worker)

    new_ticket = await service.open_intervening_ticket()

    assert new_ticket.ticket_id != ticket.ticket_id
    assert new_ticket.status is TicketStatus.INTERVENING
    assert new_ticket.incarnation_id == "i2"
    old_ticket = service.tickets.get(ticket.ticket_id)
    assert old_ticket is not None
    assert not old_ticket.is_live


async def test_settled_death_holds_over_a_restart(service: TicketFixture) -> None:
    """After a replay of the log, the monitor does not find the worker stalled."""
    ticket = await service.kill_worker(heartbeat_interval=300.0)
    await service.tickets.resolve(ticket.ticket_id, "it is gone", by="ada")
    resolutions = await service.store.history(types={EventType.TICKET_RESOLVED})

    monitor = HealthMonitor(service.settings)
    start = AgentEvent(
        type=STARTED,
        time=1_000_000.0,
        agent_id="bee",
        session_id="s1",
        incarnation_id="i1",
        data={"start_records": True, "heartbeat_interval": 300.0},
    )
    monitor.apply(start, 1_000_000.0)
    for event in resolutions:
        monitor.apply(event, service.now)
    monitor.advance(service.now + 1800)

    worker = monitor.get("bee", "s1")
    assert worker is not None
    assert (worker.vitals.status, worker.findings) == (WorkerStatus.UNKNOWN, ())
