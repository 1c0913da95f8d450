"""The ticket service on a real store: one ticket per condition; each change is durable before publication."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import Connection

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.settings import HealthSettings, ReEscalationSettings, TicketSettings
from queenright.health.store.event_log import read_events
from queenright.health.store.store import Store, StoreError
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import (
    AckChannel,
    EscalationTicket,
    TicketClosedError,
    TicketDraft,
    TicketNotFoundError,
    TicketRejectedError,
    TicketStatus,
    TicketStatusError,
)
from queenright.health.tickets.ticket_table import write_ticket
from queenright.health.tickets.ticket_transaction import TicketReportResult
from queenright.health.vitals.incarnation import end_session
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.events import AgentEvent, EventType

LOOP, STORM, STALL = FindingKind.DOOM_LOOP, FindingKind.RETRY_STORM, FindingKind.STALL
LOW, MEDIUM, HIGH, CRITICAL = Severity
HOLD = 120.0
HOUR = 3600.0


def make_finding(kind: FindingKind = LOOP, severity: Severity = HIGH, *, ticket: bool = True) -> Finding:
    return Finding(kind=kind, severity=severity, evidence=f"{kind} seen", since=900.0, ticket=ticket)


def make_worker(
    *findings: Finding, agent: str = "bee", session: str = "s1", node: str = "researcher"
) -> WorkerHealth:
    vitals = VitalSigns(agent, session, 900.0)
    vitals.node_id, vitals.graph_id, vitals.incarnation_id = node, "g", "i1"
    vitals.steps_total, vitals.steps_since_last_accept = 20, 17
    vitals.last_trace_id, vitals.last_span_id = "a" * 32, "b" * 16
    return WorkerHealth(vitals, findings, HealthState.STUCK, 900.0, "")


def make_draft(severity: Severity = LOW, **fields: Any) -> TicketDraft:
    texts = {
        "cause": "it loops",
        "judge_reasoning": "seen thrice",
        "suggested_action": "look",
        "evidence_snippet": "e",
    }
    return TicketDraft(severity=severity, **{**texts, **fields})


class TicketDesk:
    """A ticket service with its store, clock and published events."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.re_escalation = ReEscalationSettings()
        self.now = 1000.0
        self.published_events: list[AgentEvent] = []
        self.ticket_changes: list[tuple[TicketStatus, Severity]] = []
        self.silence_ends: dict[str, float] = {}
        self.group: Callable[[WorkerHealth, Finding], str] = lambda health, finding: ""
        self.workers: dict[tuple[str, str], WorkerHealth] = {}
        self._open()

    def _open(self) -> None:
        self.store = Store.open(self.url)
        self.tickets = self.make_service()

    def make_service(self) -> TicketService:
        return TicketService(
            self.store,
            settings=HealthSettings(
                tickets=TicketSettings(hold_seconds=HOLD, re_escalation=self.re_escalation)
            ),
            clock=lambda: self.now,
            publish=lambda *events: self.published_events.extend(events),
            on_change=self._record_change,
            silenced_until=lambda ticket_id: self.silence_ends.get(ticket_id),
            group=lambda health, finding: self.group(health, finding),
            find_worker=lambda agent_id, session_id: self.workers.get((agent_id, session_id)),
        )

    def _record_change(self, conn: Connection, ticket: EscalationTicket) -> None:
        assert conn.in_transaction()
        self.ticket_changes.append((ticket.status, ticket.severity))

    async def restart(self) -> list[EscalationTicket]:
        await self.store.close()
        self._open()
        return await self.tickets.load()

    async def raise_(
        self, health: WorkerHealth | None = None, severity: Severity = LOW
    ) -> TicketReportResult:
        return await self.tickets.raise_ticket(health or make_worker(make_finding()), make_draft(severity))

    async def list_logged_events(self) -> list[AgentEvent]:
        return [event for _, event in await self.store.read(read_events)]

    def list_types(self) -> list[EventType]:
        return [event.type for event in self.published_events]


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[TicketDesk]:
    desk = TicketDesk(database_url)
    yield desk
    await desk.store.close()


# -- opening and counting -------------------------------------------------------------------------


async def test_first_report_opens_a_complete_ticket(desk: TicketDesk) -> None:
    report = await desk.tickets.raise_ticket(
        make_worker(make_finding(), make_finding(STORM, MEDIUM)), make_draft(), trace_id="t", span_id="s"
    )

    ticket = report.ticket
    assert report.change == "opened"
    assert (ticket.status, ticket.severity, ticket.kind, ticket.related_kinds) == (
        TicketStatus.OPEN,
        HIGH,
        LOOP,
        (STORM,),
    )
    assert (ticket.agent_id, ticket.session_id, ticket.incarnation_id) == ("bee", "s1", "i1")
    assert (ticket.total_steps_checked, ticket.steps_since_last_accept) == (20, 17)
    assert (ticket.trace_id, ticket.span_id, ticket.worker_trace_id) == ("t", "s", "a" * 32)
    assert (ticket.created_at, ticket.first_seen) == (1000.0, 1000.0)
    [event] = desk.published_events
    assert event.type is EventType.WORKER_ESCALATION_TICKET
    assert event.data == {"ticket": ticket.model_dump(mode="json"), "change": "opened"}
    assert (event.agent_id, event.session_id, event.graph_id, event.node_id) == (
        "bee",
        "s1",
        "g",
        "researcher",
    )
    assert await desk.list_logged_events() == [event]
    assert desk.ticket_changes == []


async def test_one_condition_at_thirty_checks_is_one_ticket_and_one_notification(desk: TicketDesk) -> None:
    """B37: a condition at 30 checks is one ticket with 30 ``occurrences`` and one notification."""
    report = await desk.raise_()
    await desk.tickets.intervene(report.ticket.ticket_id, "it loops", "high")
    for _ in range(29):
        desk.now += 120.0
        report = await desk.raise_()

    assert report.change == "counted"
    [ticket] = await desk.tickets.history()
    assert (ticket.occurrences, ticket.last_seen) == (30, desk.now)
    assert desk.list_types().count(EventType.WORKER_ESCALATION_TICKET) == 1
    assert desk.ticket_changes == [(TicketStatus.INTERVENING, HIGH)]


@pytest.mark.parametrize(
    ("expected", "floor", "severity"), [(LOW, HIGH, HIGH), (CRITICAL, MEDIUM, CRITICAL), (HIGH, HIGH, HIGH)]
)
async def test_model_can_raise_but_not_lower_the_rules_severity(
    desk: TicketDesk, expected: Severity, floor: Severity, severity: Severity
) -> None:
    """B52: the rules set the minimum severity."""
    report = await desk.raise_(make_worker(make_finding(severity=floor)), expected)

    assert report.ticket.severity is severity


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda health: setattr(health, "findings", ()), "has no findings"),
        (
            lambda health: setattr(health, "findings", (make_finding(ticket=False),)),
            "no finding that justifies a ticket yet",
        ),
        (lambda health: setattr(health.vitals, "ended_at", 950.0), "has ended"),
        (
            lambda health: setattr(health.vitals, "waiting", WaitingReason.USER_INPUT),
            r"is waiting \(user_input\)",
        ),
    ],
)
async def test_model_cannot_open_a_ticket_about_a_healthy_worker(
    desk: TicketDesk, change: Any, error: str
) -> None:
    """
    B1, B36, B52: a ticket is refused for a worker that recovered, ended, waits, or is in its start grace.
    """
    health = make_worker(make_finding())
    change(health)

    with pytest.raises(TicketRejectedError, match=error):
        await desk.raise_(health, CRITICAL)

    assert await desk.tickets.history() == []
    assert desk.published_events == []


async def test_draft_about_a_different_worker_is_refused(desk: TicketDesk) -> None:
    """B36: the service sets the identity, not the model."""
    with pytest.raises(TicketRejectedError, match="agent_id: the worker's is 'bee', got 'wasp'"):
        await desk.tickets.raise_ticket(make_worker(make_finding()), make_draft(agent_id="wasp"))

    assert await desk.list_logged_events() == []


async def test_secrets_quoted_by_a_model_are_masked(desk: TicketDesk) -> None:
    secret = "password=hunter2hunter2"
    draft = make_draft(cause=secret, judge_reasoning=secret, suggested_action=secret, evidence_snippet=secret)

    report = await desk.tickets.raise_ticket(make_worker(make_finding()), draft)
    await desk.tickets.intervene(report.ticket.ticket_id, secret, "high")

    assert "hunter2" not in str([event.data for event in await desk.list_logged_events()])
    assert "hunter2" not in str(await desk.tickets.history())


async def test_draft_without_evidence_gets_the_rules_evidence(desk: TicketDesk) -> None:
    report = await desk.tickets.raise_ticket(make_worker(make_finding()), make_draft(evidence_snippet=""))

    assert report.ticket.evidence_snippet == "doom_loop seen"


async def test_second_cause_is_merged_into_the_open_ticket(desk: TicketDesk) -> None:
    first = await desk.raise_()
    second = await desk.raise_(make_worker(make_finding(STALL, CRITICAL), make_finding(), node="writer"))

    assert (second.ticket.ticket_id, second.change) == (first.ticket.ticket_id, "rose")
    assert (second.ticket.kind, second.ticket.related_kinds) == (LOOP, (STALL,))
    assert second.ticket.node_id == "researcher"


async def test_two_sessions_and_two_workers_have_their_own_tickets(desk: TicketDesk) -> None:
    for health in (
        make_worker(make_finding()),
        make_worker(make_finding(), session="s2"),
        make_worker(make_finding(), agent="wasp"),
    ):
        assert (await desk.raise_(health)).change == "opened"

    assert len(desk.tickets.open_tickets()) == 3
    assert desk.tickets.open_counts() == {(HIGH, TicketStatus.OPEN): 3}


async def test_two_monitors_on_one_worker_make_one_ticket(desk: TicketDesk) -> None:
    """B42: this holds for two callers at the same time, and for two services on one store."""
    other_service = desk.make_service()

    reports = await asyncio.gather(
        *(
            service.raise_ticket(make_worker(make_finding()), make_draft())
            for service in (desk.tickets, other_service) * 5
        )
    )

    assert sorted(report.change for report in reports) == ["counted"] * 9 + ["opened"]
    [ticket] = await desk.tickets.history()
    assert ticket.occurrences == 10


# -- severity and notifications -------------------------------------------------------------------


async def test_rise_is_notified_once_and_a_fall_never(desk: TicketDesk) -> None:
    """B38: a rise in severity is one update; a fall is none."""
    ticket = (await desk.raise_()).ticket
    await desk.tickets.intervene(ticket.ticket_id, "a", "high")
    desk.ticket_changes.clear()

    for severity in (CRITICAL, CRITICAL, MEDIUM, HIGH):
        await desk.raise_(make_worker(make_finding(severity=severity)))

    assert desk.ticket_changes == [(TicketStatus.INTERVENING, CRITICAL)]
    assert desk.list_types().count(EventType.WORKER_ESCALATION_TICKET) == 2


async def test_rise_before_triage_is_not_notified(desk: TicketDesk) -> None:
    await desk.raise_()
    await desk.raise_(make_worker(make_finding(severity=CRITICAL)))

    assert desk.ticket_changes == []
    assert [event.data["change"] for event in desk.published_events] == ["opened", "rose"]


async def test_rules_raise_an_open_ticket_without_the_judge(desk: TicketDesk) -> None:
    ticket = (await desk.raise_(make_worker(make_finding(severity=MEDIUM)))).ticket
    await desk.tickets.intervene(ticket.ticket_id, "a", "medium")

    await desk.tickets.observe(make_worker(make_finding(severity=CRITICAL)))

    [risen_ticket] = desk.tickets.open_tickets()
    assert (risen_ticket.severity, risen_ticket.occurrences) == (CRITICAL, 2)
    assert desk.ticket_changes[-1] == (TicketStatus.INTERVENING, CRITICAL)


async def test_only_findings_that_are_new_worse_or_back_count_as_reports(desk: TicketDesk) -> None:
    await desk.raise_(make_worker(make_finding(), make_finding(STORM, MEDIUM)))

    await desk.tickets.observe(make_worker(make_finding(), make_finding(STORM, MEDIUM)))
    await desk.tickets.observe(make_worker(make_finding()))
    await desk.tickets.observe(make_worker(make_finding(), make_finding(STALL, LOW)))

    [ticket] = desk.tickets.open_tickets()
    assert ticket.occurrences == 2
    assert ticket.active_kinds == (LOOP, STALL)


# -- recovery -------------------------------------------------------------------------------------


async def test_held_recovery_resolves_and_notifies(desk: TicketDesk) -> None:
    """B39: a condition that stays clear for the hold resolves the ticket and notifies the operator."""
    ticket = (await desk.raise_()).ticket
    await desk.tickets.intervene(ticket.ticket_id, "a", "high")

    await desk.tickets.observe(make_worker())
    assert desk.tickets.next_deadline() == 1000.0 + HOLD
    assert await desk.tickets.settle(1119.9) == []
    [resolved_ticket] = await desk.tickets.settle(1120.0)

    assert (resolved_ticket.status, resolved_ticket.closed_at) == (TicketStatus.RESOLVED, 1120.0)
    assert desk.ticket_changes == [(TicketStatus.INTERVENING, HIGH), (TicketStatus.RESOLVED, HIGH)]
    assert desk.published_events[-1].type is EventType.TICKET_RESOLVED
    assert desk.published_events[-1].data["status"] == "resolved"
    assert desk.tickets.next_deadline() is None
    assert await desk.tickets.settle(2000.0) == []


async def test_relapse_within_the_hold_is_the_same_ticket_and_no_second_page(desk: TicketDesk) -> None:
    """B39: a relapse within the hold continues the same ticket."""
    ticket = (await desk.raise_()).ticket
    await desk.tickets.intervene(ticket.ticket_id, "a", "high")
    await desk.tickets.observe(make_worker())
    desk.now += HOLD - 1

    await desk.tickets.observe(make_worker(make_finding()))

    assert await desk.tickets.settle(desk.now + HOLD * 3) == []
    relapsed_ticket = desk.tickets.get(ticket.ticket_id)
    assert relapsed_ticket is not None
    assert (relapsed_ticket.status, relapsed_ticket.occurrences) == (TicketStatus.INTERVENING, 2)
    assert desk.ticket_changes == [(TicketStatus.INTERVENING, HIGH)]
    assert desk.published_events[-1].data["change"] == "reopened"


async def test_relapse_after_the_hold_is_a_new_ticket(desk: TicketDesk) -> None:
    first = (await desk.raise_()).ticket
    await desk.tickets.observe(make_worker())
    await desk.tickets.settle(desk.now + HOLD)

    second = await desk.raise_()

    assert second.change == "opened"
    assert second.ticket.ticket_id != first.ticket_id


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (WorkerStatus.COMPLETED, "the run completed"),
        (WorkerStatus.FAILED, "the worker ended"),
        (WorkerStatus.UNKNOWN, "the worker sent nothing more"),
    ],
)
async def test_closed_ticket_says_how_the_run_ended(
    desk: TicketDesk, status: WorkerStatus, reason: str
) -> None:
    ticket = (await desk.raise_()).ticket
    ended_worker = make_worker()
    end_session(ended_worker.vitals, status, 1001.0)

    await desk.tickets.observe(ended_worker)

    closed_ticket = desk.tickets.get(ticket.ticket_id)
    assert closed_ticket is not None
    assert (closed_ticket.status, closed_ticket.closed_reason) == (TicketStatus.WORKER_GONE, reason)


async def test_end_of_an_unnotified_ticket_is_not_notified(desk: TicketDesk) -> None:
    await desk.raise_()
    await desk.tickets.observe(make_worker())
    await desk.tickets.settle(desk.now + HOLD)

    assert desk.list_types()[-1] is EventType.TICKET_RESOLVED
    assert desk.ticket_changes == []


@pytest.mark.parametrize("is_notified", [True, False])
async def test_ending_worker_closes_its_ticket(desk: TicketDesk, *, is_notified: bool) -> None:
    """B40: an open ticket of a worker that ends becomes ``worker_gone``, without further alerts."""
    ticket = (await desk.raise_()).ticket
    if is_notified:
        await desk.tickets.intervene(ticket.ticket_id, "a", "high")
    ended_worker = make_worker(make_finding())
    ended_worker.vitals.ended_at = 1001.0

    await desk.tickets.observe(ended_worker)
    await desk.tickets.observe(ended_worker)

    closed_ticket = desk.tickets.get(ticket.ticket_id)
    assert closed_ticket is not None
    assert closed_ticket.status is TicketStatus.WORKER_GONE
    assert desk.ticket_changes[int(is_notified) :] == (
        [(TicketStatus.WORKER_GONE, HIGH)] if is_notified else []
    )
    assert desk.list_types().count(EventType.TICKET_RESOLVED) == 1
    assert desk.published_events[-1].data["status"] == "worker_gone"


async def test_workers_without_tickets_cause_no_transaction(desk: TicketDesk) -> None:
    await desk.store.close()

    await desk.tickets.observe(make_worker(make_finding()))
    assert await desk.tickets.settle(1e9) == []


# -- triage ---------------------------------------------------------------------------------------


async def test_dismissed_ticket_is_counted_and_not_triaged_again_until_worse(desk: TicketDesk) -> None:
    """B48: a dismissal is stored and counted; the same condition opens no ticket until it worsens."""
    ticket = (await desk.raise_(make_worker(make_finding(severity=MEDIUM)))).ticket
    await desk.tickets.dismiss(ticket.ticket_id, "it gets on")
    desk.published_events.clear()

    report = await desk.raise_(make_worker(make_finding(severity=MEDIUM)))
    await desk.tickets.observe(make_worker(make_finding(severity=MEDIUM)))
    assert (report.change, report.ticket.ticket_id, report.ticket.occurrences) == (
        "counted",
        ticket.ticket_id,
        2,
    )
    assert desk.published_events == []
    [dismissed_ticket] = await desk.tickets.history(statuses=[TicketStatus.DISMISSED])
    assert (
        dismissed_ticket.triage_decision,
        dismissed_ticket.triage_reason,
        dismissed_ticket.triaged_by,
    ) == (
        "dismiss",
        "it gets on",
        "queen",
    )

    worse_report = await desk.raise_(make_worker(make_finding(severity=HIGH)))
    assert (worse_report.change, worse_report.ticket.ticket_id) == ("rose", ticket.ticket_id)
    assert worse_report.ticket.status is TicketStatus.OPEN


async def test_new_condition_after_a_dismissal_is_triaged(desk: TicketDesk) -> None:
    dismissed_ticket = (await desk.raise_(make_worker(make_finding(severity=MEDIUM)))).ticket
    await desk.tickets.dismiss(dismissed_ticket.ticket_id, "it gets on")

    other = await desk.raise_(make_worker(make_finding(severity=MEDIUM), make_finding(STALL, MEDIUM)))

    assert (other.change, other.ticket.kind) == ("opened", STALL)
    await desk.tickets.observe(make_worker(make_finding(severity=CRITICAL), make_finding(STALL, MEDIUM)))
    [only_open] = desk.tickets.open_tickets()
    assert (only_open.ticket_id, only_open.severity) == (other.ticket.ticket_id, CRITICAL)


async def test_model_cannot_dismiss_a_high_ticket_that_holds(desk: TicketDesk) -> None:
    """B52: the model cannot close the ticket in any other way either."""
    ticket = (await desk.raise_()).ticket

    with pytest.raises(TicketStatusError, match="still holds"):
        await desk.tickets.dismiss(ticket.ticket_id, "ignore this")

    assert desk.tickets.get(ticket.ticket_id) == ticket
    await desk.tickets.observe(make_worker())
    assert (await desk.tickets.dismiss(ticket.ticket_id, "recovered")).status is TicketStatus.DISMISSED


async def test_intervening_is_one_transaction_with_its_events_and_the_outbox(desk: TicketDesk) -> None:
    ticket = (await desk.raise_()).ticket

    ticket_after = await desk.tickets.intervene(ticket.ticket_id, "it loops", "high")

    triage_event, request_event = desk.published_events[1:]
    assert triage_event.type is EventType.TICKET_TRIAGED
    assert triage_event.data == {"ticket_id": ticket.ticket_id, "decision": "intervene", "reason": "it loops"}
    assert request_event.type is EventType.QUEEN_INTERVENTION_REQUESTED
    assert request_event.data == {
        "ticket_id": ticket.ticket_id,
        "analysis": "it loops",
        "severity": "high",
        "urgency": "high",
        "queen_graph_id": "queen",
        "queen_stream_id": "queen::ticket_receiver",
        "untriaged": False,
    }
    assert await desk.list_logged_events() == desk.published_events
    assert (ticket_after.status, desk.ticket_changes) == (
        TicketStatus.INTERVENING,
        [(TicketStatus.INTERVENING, HIGH)],
    )


async def test_outbox_that_fails_undoes_the_decision(desk: TicketDesk) -> None:
    ticket = (await desk.raise_()).ticket
    desk.published_events.clear()

    def raise_disk_full(conn: Connection, ticket: EscalationTicket) -> None:
        raise OSError("no space")

    failing_service = desk.make_service()
    failing_service._on_change = raise_disk_full
    with pytest.raises(OSError, match="no space"):
        await failing_service.intervene(ticket.ticket_id, "a", "high")

    assert await desk.tickets.history() == [ticket]
    assert len(await desk.list_logged_events()) == 1
    assert desk.published_events == []


@pytest.mark.parametrize("verb", ["intervene", "dismiss", "acknowledge"])
async def test_deciding_on_an_unknown_or_closed_ticket_is_an_error(desk: TicketDesk, verb: str) -> None:
    """B49: notifying about an unknown or closed ticket is an error."""
    decide: Callable[[str], Awaitable[EscalationTicket]] = {
        "intervene": lambda ticket_id: desk.tickets.intervene(ticket_id, "a", "high"),
        "dismiss": lambda ticket_id: desk.tickets.dismiss(ticket_id, "r"),
        "acknowledge": lambda ticket_id: desk.tickets.acknowledge(ticket_id, by="ann"),
    }[verb]
    closed_id = (await desk.raise_()).ticket.ticket_id
    await desk.tickets.observe(make_worker())
    await desk.tickets.settle(desk.now + HOLD)

    with pytest.raises(TicketClosedError, match="was closed"):
        await decide(closed_id)
    with pytest.raises(TicketNotFoundError, match="there is no ticket 'nope'"):
        await decide("nope")
    assert desk.ticket_changes == []


@pytest.mark.parametrize(("analysis", "urgency"), [("", "high"), (" \n", "high"), ("a", "")])
async def test_empty_analysis_is_refused(desk: TicketDesk, analysis: str, urgency: str) -> None:
    ticket = (await desk.raise_()).ticket

    with pytest.raises(TicketRejectedError, match="must not be empty"):
        await desk.tickets.intervene(ticket.ticket_id, analysis, urgency)


async def test_acknowledged_ticket_is_not_escalated_again(desk: TicketDesk) -> None:
    """B41: an acknowledged ticket has no reminders, but a rise in severity is notified."""
    ticket = (await desk.raise_()).ticket
    await desk.tickets.intervene(ticket.ticket_id, "a", "high")
    await desk.tickets.acknowledge(ticket.ticket_id, by="ann")
    desk.ticket_changes.clear()

    await desk.raise_()
    assert desk.ticket_changes == []
    await desk.raise_(make_worker(make_finding(severity=CRITICAL)))

    assert desk.ticket_changes == [(TicketStatus.ACKNOWLEDGED, CRITICAL)]
    assert desk.list_types().count(EventType.TICKET_ACKNOWLEDGED) == 1


async def open_notified_ticket(desk: TicketDesk, health: WorkerHealth | None = None) -> EscalationTicket:
    """Return a ticket whose operator has just been notified."""
    ticket = (await desk.raise_(health)).ticket
    stored_ticket = await desk.tickets.intervene(ticket.ticket_id, "a", "high")
    desk.ticket_changes.clear()
    return stored_ticket


async def pass_hours(desk: TicketDesk, hours: int) -> None:
    """Advance the clock minute by minute, and carry out what is due, as the service does."""
    for _ in range(hours * 60):
        desk.now += 60
        await desk.tickets.settle(desk.now)


async def test_unacknowledged_ticket_has_a_limited_number_of_reminders(desk: TicketDesk) -> None:
    """
    B41: a reminder follows an hour after the last notification, three times at most, on the same ticket.
    """
    ticket = await open_notified_ticket(desk)
    assert desk.tickets.next_deadline() == desk.now + HOUR

    desk.now += HOUR - 1
    await desk.tickets.settle(desk.now)
    assert desk.ticket_changes == []
    desk.now += 1
    assert await desk.tickets.settle(desk.now) == []
    assert desk.ticket_changes == [(TicketStatus.INTERVENING, HIGH)]

    await pass_hours(desk, 10)
    assert len(desk.ticket_changes) == 3
    assert desk.tickets.next_deadline() is None
    [open_ticket] = desk.tickets.open_tickets()
    assert (open_ticket.ticket_id, open_ticket.reminders, open_ticket.occurrences) == (ticket.ticket_id, 3, 1)
    events = [
        event for event in await desk.list_logged_events() if event.type is EventType.TICKET_REESCALATED
    ]
    assert [event.data["reminder"] for event in events] == [1, 2, 3]
    assert [event.data["unacknowledged_seconds"] for event in events] == [HOUR, 2 * HOUR, 3 * HOUR]
    assert events == [event for event in desk.published_events if event.type is EventType.TICKET_REESCALATED]


@pytest.mark.parametrize("closing", ["ann", "dismissal", "resolution", "end", "never told"])
async def test_acknowledged_and_closed_tickets_have_no_reminders(desk: TicketDesk, closing: str) -> None:
    """B41: an acknowledged, dismissed or closed ticket has no reminder."""
    if closing == "never told":
        await desk.raise_()
    elif closing == "dismissal":
        ticket = (await desk.raise_(make_worker(make_finding(severity=LOW)))).ticket
        await desk.tickets.dismiss(ticket.ticket_id, "r")
    else:
        ticket = await open_notified_ticket(desk)
        if closing == "ann":
            await desk.tickets.acknowledge(ticket.ticket_id, by="ann")
        elif closing == "resolution":
            await desk.tickets.observe(make_worker())
        else:
            ended_worker = make_worker()
            ended_worker.vitals.ended_at = desk.now
            await desk.tickets.observe(ended_worker)

    await pass_hours(desk, 6)

    assert EventType.TICKET_REESCALATED not in desk.list_types()


async def test_zero_hours_means_no_reminders(desk: TicketDesk) -> None:
    """B41."""
    desk.re_escalation = ReEscalationSettings(max=0)
    desk.tickets = desk.make_service()
    await open_notified_ticket(desk)

    assert desk.tickets.next_deadline() is None
    await pass_hours(desk, 6)
    assert desk.ticket_changes == []


async def test_reminder_counts_from_the_last_bump(desk: TicketDesk) -> None:
    """B41: a rise or a relapse also notifies and defers the reminder; another occurrence does not."""
    await open_notified_ticket(desk)
    desk.now += HOUR / 2
    await desk.raise_()
    assert desk.tickets.next_deadline() == desk.now + HOUR / 2

    await desk.raise_(make_worker(make_finding(severity=CRITICAL)))
    assert desk.tickets.next_deadline() == desk.now + HOUR

    desk.now += HOUR / 2
    await desk.tickets.observe(make_worker())
    desk.now += HOLD - 1
    await desk.tickets.observe(make_worker(make_finding(severity=CRITICAL)))
    assert desk.tickets.next_deadline() == desk.now + HOUR


async def test_rise_has_its_own_reminders(desk: TicketDesk) -> None:
    """B41: the earlier three reminders were about a lower severity."""
    await open_notified_ticket(desk)
    await pass_hours(desk, 4)
    await desk.raise_(make_worker(make_finding(severity=CRITICAL)))
    desk.ticket_changes.clear()

    await pass_hours(desk, 6)

    assert desk.ticket_changes == [(TicketStatus.INTERVENING, CRITICAL)] * 3


async def test_no_reminder_within_the_hold(desk: TicketDesk) -> None:
    """B41: the condition may have ended; a relapse notifies."""
    await open_notified_ticket(desk)
    desk.now += HOUR - 1
    await desk.tickets.observe(make_worker())
    desk.now += HOLD - 1
    await desk.tickets.settle(desk.now)

    assert desk.ticket_changes == []


async def test_reminders_survive_a_restart_and_missed_ones_are_skipped(desk: TicketDesk) -> None:
    """B41: reminders that were due while the service was down are notified once."""
    await open_notified_ticket(desk)
    desk.now += HOUR / 2
    await desk.restart()
    assert desk.tickets.next_deadline() == desk.now + HOUR / 2
    desk.now += 12 * HOUR
    await desk.restart()
    await desk.tickets.settle(desk.now)
    await desk.tickets.settle(desk.now)

    assert len(desk.ticket_changes) == 1
    await desk.restart()
    assert desk.tickets.next_deadline() == desk.now + HOUR
    assert desk.tickets.open_tickets()[0].reminders == 1


async def test_ticket_of_an_earlier_version_has_reminders_from_its_decision(desk: TicketDesk) -> None:
    """B41: such a ticket has no time of its last notification."""
    ticket = await open_notified_ticket(desk)
    old_ticket = ticket.model_copy(update={"notified_at": None, "bumped_at": None})
    await desk.store.transact(lambda conn: write_ticket(conn, old_ticket))
    await desk.restart()

    assert desk.tickets.next_deadline() == desk.now + HOUR
    desk.now += HOUR
    await desk.tickets.settle(desk.now)
    assert desk.published_events[-1].data["unacknowledged_seconds"] == HOUR


async def test_silenced_ticket_has_a_reminder_when_its_silence_ends(desk: TicketDesk) -> None:
    """
    B41: reminders are deferred during a silence; if the silence ends early, the reminder is due at once.
    """
    ticket = await open_notified_ticket(desk)
    start_time = desk.now
    desk.silence_ends[ticket.ticket_id] = start_time + 5 * HOUR
    assert desk.tickets.next_deadline() == start_time + 5 * HOUR
    await pass_hours(desk, 4)
    assert desk.ticket_changes == []

    await pass_hours(desk, 1)
    assert desk.ticket_changes == [(TicketStatus.INTERVENING, HIGH)]
    assert desk.tickets.next_deadline() == desk.now + HOUR

    desk.silence_ends[ticket.ticket_id] = desk.now + 5 * HOUR
    await pass_hours(desk, 2)
    desk.silence_ends.clear()
    await desk.tickets.settle(desk.now)
    assert len(desk.ticket_changes) == 2


async def test_silenced_ticket_can_close(desk: TicketDesk) -> None:
    ticket = await open_notified_ticket(desk)
    desk.silence_ends[ticket.ticket_id] = desk.now + HOUR
    await desk.tickets.observe(make_worker())
    desk.now += HOLD

    [closed_ticket] = await desk.tickets.settle(desk.now)

    assert closed_ticket.status is TicketStatus.RESOLVED


@pytest.mark.parametrize("channel", list(AckChannel))
async def test_acknowledgement_through_any_channel_stops_reminders(
    desk: TicketDesk, channel: AckChannel
) -> None:
    """B41: the ticket and the log keep who acknowledged it and how, over a restart."""
    ticket = await open_notified_ticket(desk)
    await desk.tickets.acknowledge(
        ticket.ticket_id, by="ann", via=channel, note=" my key is sk-" + "a1B2" * 12
    )
    await desk.restart()
    await pass_hours(desk, 6)

    [open_ticket] = desk.tickets.open_tickets()
    assert (open_ticket.acknowledged_by, open_ticket.acknowledged_via, open_ticket.reminders) == (
        "ann",
        channel,
        0,
    )
    assert "a1B2" not in open_ticket.acknowledged_note
    [acknowledgement_event] = [
        event for event in await desk.list_logged_events() if event.type is EventType.TICKET_ACKNOWLEDGED
    ]
    assert (
        acknowledgement_event.data["by"],
        acknowledgement_event.data["via"],
        "a1B2" in acknowledgement_event.data["note"],
    ) == (
        "ann",
        channel.value,
        False,
    )
    assert EventType.TICKET_REESCALATED not in desk.list_types()


async def test_unacknowledged_ticket_restarts_its_reminders(desk: TicketDesk) -> None:
    """B41: the reminders were used up; after the acknowledgement is withdrawn, they start again."""
    ticket = await open_notified_ticket(desk)
    await pass_hours(desk, 4)
    await desk.tickets.acknowledge(ticket.ticket_id, by="ann")
    await pass_hours(desk, 4)
    desk.ticket_changes.clear()

    returned_ticket = await desk.tickets.unacknowledge(ticket.ticket_id, by="bob")

    assert (returned_ticket.status, returned_ticket.acknowledged_by, returned_ticket.reminders) == (
        TicketStatus.INTERVENING,
        "",
        0,
    )
    assert returned_ticket.notified_at == ticket.notified_at
    # The ticket shows that no one has it; there is no new alert.
    assert desk.ticket_changes == [(TicketStatus.INTERVENING, HIGH)]
    assert desk.tickets.next_deadline() == desk.now + HOUR
    await pass_hours(desk, 6)
    assert len(desk.ticket_changes) == 4
    events = [
        event for event in await desk.list_logged_events() if event.type is EventType.TICKET_UNACKNOWLEDGED
    ]
    assert [(event.data["by"], event.data["was"]) for event in events] == [("bob", "ann")]
    with pytest.raises(TicketStatusError, match="nobody acknowledged it"):
        await desk.tickets.unacknowledge(ticket.ticket_id, by="bob")


async def test_ticket_acknowledged_before_triage_returns_to_triage(desk: TicketDesk) -> None:
    ticket = (await desk.raise_()).ticket
    await desk.tickets.acknowledge(ticket.ticket_id, by="ann")
    desk.published_events.clear()

    returned_ticket = await desk.tickets.unacknowledge(ticket.ticket_id, by="ann")

    assert (returned_ticket.status, returned_ticket.notified_at, desk.ticket_changes) == (
        TicketStatus.OPEN,
        None,
        [],
    )
    assert [event.type for event in desk.published_events] == [
        EventType.TICKET_UNACKNOWLEDGED,
        EventType.WORKER_ESCALATION_TICKET,
    ]
    assert [waiting_ticket.ticket_id for waiting_ticket in await desk.restart()] == [ticket.ticket_id]


async def test_ticket_triaged_while_acknowledged_is_notified_afterwards(desk: TicketDesk) -> None:
    ticket = (await desk.raise_()).ticket
    await desk.tickets.acknowledge(ticket.ticket_id, by="ann")
    await desk.tickets.intervene(ticket.ticket_id, "a", "high")
    assert desk.ticket_changes == []

    returned_ticket = await desk.tickets.unacknowledge(ticket.ticket_id, by="ann")

    assert (returned_ticket.notified_severity, returned_ticket.notified_at) == (HIGH, desk.now)
    assert desk.ticket_changes == [(TicketStatus.INTERVENING, HIGH)]


async def test_unacknowledge_with_only_via_is_limited_to_its_channel(desk: TicketDesk) -> None:
    ticket = await open_notified_ticket(desk)
    await desk.tickets.acknowledge(ticket.ticket_id, by="ann", via=AckChannel.SLACK)

    with pytest.raises(TicketStatusError, match="ann acknowledged it, but not through pagerduty"):
        await desk.tickets.unacknowledge(ticket.ticket_id, by="x", only_via=AckChannel.PAGERDUTY)
    await desk.tickets.unacknowledge(ticket.ticket_id, by="x", only_via=AckChannel.SLACK)


async def test_findings_are_stored_with_the_models_text(desk: TicketDesk) -> None:
    """
    The text follows the worst finding. Another occurrence leaves it, so that a page does not change each
    time.
    """
    health = make_worker(make_finding())
    health.vitals.evidence = "no results; key sk-" + "a1B2" * 12
    invented_draft = make_draft(cause="all is well", evidence_snippet="made up")
    ticket = (await desk.tickets.raise_ticket(health, invented_draft, model="some/model")).ticket

    assert (ticket.finding_kind, ticket.finding_evidence) == (LOOP, "doom_loop seen")
    assert ticket.finding_since == 900.0
    assert ticket.worker_excerpt.startswith("no results; key ")
    assert "a1B2" not in ticket.worker_excerpt
    assert ticket.judge_model == "some/model"
    stored_ticket = await desk.tickets.intervene(ticket.ticket_id, "a", "high", model="other/model")
    assert stored_ticket.queen_model == "other/model"

    await desk.tickets.observe(make_worker(make_finding(STALL, CRITICAL), make_finding()))

    risen_ticket = desk.tickets.get(ticket.ticket_id)
    assert risen_ticket is not None
    assert (risen_ticket.kind, risen_ticket.finding_kind, risen_ticket.finding_evidence) == (
        LOOP,
        STALL,
        "stall seen",
    )
    await desk.raise_(make_worker(make_finding(), make_finding(STORM, LOW)))
    counted_ticket = desk.tickets.get(ticket.ticket_id)
    assert counted_ticket is not None
    assert counted_ticket.finding_kind is STALL


# -- restarts and abandoned triage -----------------------------------------------------------------------


async def test_restart_loads_open_tickets_and_returns_undecided_ones(
    desk: TicketDesk,
) -> None:
    """B43: a ticket that waits for triage is returned once, with the same id."""
    decided_ticket = (await desk.raise_()).ticket
    untriaged_ticket = (await desk.raise_(make_worker(make_finding(), session="s2"))).ticket
    dismissed_ticket = (await desk.raise_(make_worker(make_finding(severity=LOW), session="s3"))).ticket
    await desk.tickets.intervene(decided_ticket.ticket_id, "a", "high")
    await desk.tickets.dismiss(dismissed_ticket.ticket_id, "r")
    await desk.tickets.observe(make_worker())

    undecided_tickets = await desk.restart()

    assert undecided_tickets == [untriaged_ticket]
    assert [open_ticket.ticket_id for open_ticket in desk.tickets.open_tickets()] == [
        decided_ticket.ticket_id,
        untriaged_ticket.ticket_id,
    ]
    assert desk.tickets.next_deadline() == desk.now + HOLD
    report = await desk.raise_(make_worker(make_finding(), session="s2"))
    assert (report.change, report.ticket.ticket_id) == ("counted", untriaged_ticket.ticket_id)


async def test_cancelled_caller_does_not_suppress_a_stored_ticket(desk: TicketDesk) -> None:
    raise_task = asyncio.create_task(desk.raise_())
    await asyncio.sleep(0)
    raise_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await raise_task
    await desk.store.transact(lambda _: None)

    [ticket] = desk.tickets.open_tickets()
    assert desk.published_events[0].data["ticket"]["ticket_id"] == ticket.ticket_id


async def test_error_is_not_logged_if_its_caller_was_cancelled(
    desk: TicketDesk, caplog: pytest.LogCaptureFixture
) -> None:
    dismiss_task = asyncio.create_task(desk.tickets.dismiss("none", "recovered"))
    await asyncio.sleep(0)
    dismiss_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dismiss_task
    await desk.store.transact(lambda _: None)
    await asyncio.sleep(0)

    gc.collect()

    assert caplog.text == ""


async def test_unstored_ticket_is_not_published(desk: TicketDesk) -> None:
    await desk.store.close()

    with pytest.raises(StoreError):
        await desk.raise_()

    assert desk.published_events == []
    assert desk.tickets.open_tickets() == []


async def test_history_is_newest_first_and_by_worker(desk: TicketDesk) -> None:
    for number in range(3):
        desk.now += 1
        await desk.raise_(
            make_worker(make_finding(), session=f"s{number}", agent="bee" if number else "wasp")
        )

    assert [listed_ticket.session_id for listed_ticket in await desk.tickets.history(2)] == ["s2", "s1"]
    assert [listed_ticket.session_id for listed_ticket in await desk.tickets.history(agent_id="wasp")] == [
        "s0"
    ]
    ticket = await desk.tickets.find(desk.tickets.open_tickets()[0].ticket_id)
    assert ticket == desk.tickets.open_tickets()[0]
    assert await desk.tickets.find("nope") is None


async def test_open_ticket_of_a_session_is_found(desk: TicketDesk) -> None:
    assert desk.tickets.open_for("bee", "s1") is None
    ticket = (await desk.raise_(make_worker(make_finding(severity=LOW)))).ticket

    assert desk.tickets.open_for("bee", "s1") == ticket
    await desk.tickets.dismiss(ticket.ticket_id, "r")
    assert desk.tickets.open_for("bee", "s1") is None


# -- any history -------------------------------------------------------------------------------------

_kinds = st.sampled_from([LOOP, STORM, STALL])
_findings = st.lists(
    st.builds(make_finding, _kinds, st.sampled_from(Severity)), max_size=2, unique_by=lambda f: f.kind
)


class TicketMachine(RuleBasedStateMachine):
    """
    Invariants of tickets for any order of actions of judge, queen, operator, worker and clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.last_tickets: dict[str, EscalationTicket] = {}
        self.reports: dict[str, int] = {}

    @initialize()
    def open_desk(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.desk = TicketDesk(f"sqlite:///{self.folder.name}/hive.db")

    def run_coroutine(self, work: Any) -> Any:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run_coroutine(self.desk.store.close())
        self.runner.close()
        self.folder.cleanup()

    def get_open_ticket(self) -> EscalationTicket | None:
        return next(iter(self.desk.tickets.open_tickets()), None)

    @rule(findings=_findings, severity=st.sampled_from(Severity))
    def raise_ticket(self, findings: list[Finding], severity: Severity) -> None:
        before = self.get_open_ticket()
        try:
            report = self.run_coroutine(self.desk.raise_(make_worker(*findings), severity))
        except TicketRejectedError:
            assert not findings
            return
        ticket = report.ticket
        self.reports[ticket.ticket_id] = self.reports.get(ticket.ticket_id, 0) + 1
        assert ticket.occurrences == self.reports[ticket.ticket_id]
        assert (report.change == "opened") == (ticket.occurrences == 1)
        if before is not None:
            assert ticket.ticket_id == before.ticket_id
        if ticket.is_open:
            assert ticket.severity.rank >= max(
                reported_finding.severity.rank
                for reported_finding in findings
                if reported_finding.kind is ticket.kind or before
            )

    @rule(findings=_findings)
    def observe_findings(self, findings: list[Finding]) -> None:
        self.run_coroutine(self.desk.tickets.observe(make_worker(*findings)))
        for ticket in self.list_tickets():
            assert ticket.occurrences - self.reports[ticket.ticket_id] in (0, 1)
            self.reports[ticket.ticket_id] = ticket.occurrences

    @rule(verb=st.sampled_from(["intervene", "dismiss", "acknowledge", "bypass"]), index=st.integers(0, 5))
    @precondition(lambda self: self.last_tickets)
    def decide(self, verb: str, index: int) -> None:
        tickets = self.desk.tickets
        ids = sorted(self.last_tickets)
        ticket_id = ids[index % len(ids)]
        try:
            match verb:
                case "intervene":
                    self.run_coroutine(tickets.intervene(ticket_id, "a", "high"))
                case "bypass":
                    self.run_coroutine(tickets.intervene(ticket_id, "a", "high", is_untriaged=True))
                case "dismiss":
                    self.run_coroutine(tickets.dismiss(ticket_id, "r"))
                case _:
                    self.run_coroutine(tickets.acknowledge(ticket_id, by="ann"))
        except (TicketClosedError, TicketStatusError):
            assert self.run_coroutine(tickets.find(ticket_id)) == self.last_tickets[ticket_id]

    @rule(seconds=st.sampled_from([1.0, 60.0, HOLD, HOUR]))
    def advance_clock(self, seconds: float) -> None:
        self.desk.now += seconds
        for ticket in self.run_coroutine(self.desk.tickets.settle(self.desk.now)):
            assert not ticket.is_live

    @rule()
    def end_worker(self) -> None:
        ended_worker = make_worker()
        ended_worker.vitals.ended_at = self.desk.now
        self.run_coroutine(self.desk.tickets.observe(ended_worker))
        assert self.get_open_ticket() is None

    @rule()
    def restart(self) -> None:
        untriaged_tickets = self.run_coroutine(self.desk.restart())
        assert all(ticket.status is TicketStatus.OPEN for ticket in untriaged_tickets)

    def list_tickets(self) -> list[EscalationTicket]:
        return list(self.run_coroutine(self.desk.tickets.history(1000)))

    @invariant()
    def check_promises(self) -> None:
        tickets = {ticket.ticket_id: ticket for ticket in self.list_tickets()}
        assert self.last_tickets.keys() <= tickets.keys()
        for ticket_id, before in self.last_tickets.items():
            current = tickets[ticket_id]
            assert current.severity.rank >= before.severity.rank
            assert current.occurrences >= before.occurrences
            assert before.is_live or current == before
            assert (current.closed_at is None) == current.is_live
        for ticket in tickets.values():
            self.reports.setdefault(ticket.ticket_id, ticket.occurrences)
            if ticket.is_live:
                assert self.desk.tickets.get(ticket.ticket_id) == ticket
        live = [ticket for ticket in tickets.values() if ticket.is_live]
        assert sum(ticket.is_open for ticket in live) <= 1
        assert len({ticket.fingerprint for ticket in live}) == len(live)
        self.last_tickets = tickets


TestTickets = TicketMachine.TestCase
TestTickets.settings = settings(stateful_step_count=25, suppress_health_check=list(HealthCheck))


# -- failed recoveries -----------------------------------------------------------------

RECOVERY_FAILED = FindingKind.RECOVERY_FAILED


def make_lost_worker() -> WorkerHealth:
    health = make_worker(make_finding(RECOVERY_FAILED, CRITICAL))
    health.vitals.ended_at = 990.0
    return health


async def test_ended_worker_with_a_failed_recovery_gets_a_ticket(desk: TicketDesk) -> None:
    report = await desk.raise_(make_lost_worker())

    assert (report.change, report.ticket.kind, report.ticket.severity) == (
        "opened",
        RECOVERY_FAILED,
        CRITICAL,
    )
    assert report.ticket.stall_minutes is None


async def test_other_findings_of_an_ended_worker_justify_no_ticket(desk: TicketDesk) -> None:
    ended_worker = make_worker(make_finding(STALL, CRITICAL))
    ended_worker.vitals.ended_at = 990.0

    with pytest.raises(TicketRejectedError, match="has ended"):
        await desk.raise_(ended_worker)


async def test_failed_recovery_ticket_survives_the_end_and_closes_with_progress(desk: TicketDesk) -> None:
    ticket = (await desk.raise_(make_lost_worker())).ticket
    await desk.tickets.observe(make_lost_worker())
    stored_ticket = await desk.tickets.find(ticket.ticket_id)
    await desk.tickets.observe(make_worker())
    await desk.tickets.settle(desk.now + HOLD)
    closed_ticket = await desk.tickets.find(ticket.ticket_id)

    assert stored_ticket is not None
    assert stored_ticket.is_open
    assert closed_ticket is not None
    assert closed_ticket.status is TicketStatus.RESOLVED


async def test_other_tickets_of_a_lost_worker_close_or_absorb_the_loss(desk: TicketDesk) -> None:
    stalled_worker = (await desk.raise_(make_worker(make_finding(STALL, HIGH)))).ticket
    await desk.tickets.observe(make_lost_worker())
    ticket = await desk.tickets.find(stalled_worker.ticket_id)
    ended_worker = make_worker()
    ended_worker.vitals.ended_at = 990.0
    await desk.tickets.observe(ended_worker)
    closed_ticket = await desk.tickets.find(stalled_worker.ticket_id)

    assert ticket is not None
    assert (ticket.is_open, ticket.severity, ticket.active_kinds) == (True, CRITICAL, (RECOVERY_FAILED,))
    assert closed_ticket is not None
    assert closed_ticket.status is TicketStatus.WORKER_GONE


async def test_resolution_by_a_person_is_durable_and_published_with_the_name(desk: TicketDesk) -> None:
    ticket = (await desk.raise_(make_lost_worker())).ticket
    await desk.tickets.intervene(ticket.ticket_id, "look at it", "now")
    await desk.tickets.resolve(ticket.ticket_id, "done by hand", by="ann")
    await desk.restart()

    closed_ticket = await desk.tickets.find(ticket.ticket_id)
    assert closed_ticket is not None
    assert (closed_ticket.status, closed_ticket.closed_reason) == (TicketStatus.RESOLVED, "ann: done by hand")
    assert desk.published_events[-1].type is EventType.TICKET_RESOLVED
    assert desk.published_events[-1].data["by"] == "ann"
    assert desk.ticket_changes[-1][0] is TicketStatus.RESOLVED


async def test_self_closing_ticket_cannot_be_resolved(desk: TicketDesk) -> None:
    ticket = (await desk.raise_()).ticket

    with pytest.raises(TicketStatusError, match="closes by itself"):
        await desk.tickets.resolve(ticket.ticket_id, "tired of it", by="ann")
    with pytest.raises(TicketNotFoundError):
        await desk.tickets.resolve("no such", "x", by="ann")
    with pytest.raises(TicketRejectedError, match="reason"):
        await desk.tickets.resolve(ticket.ticket_id, " ", by="ann")


async def test_ticket_keeps_the_storm_in_which_it_was_opened(desk: TicketDesk) -> None:
    """B71: tickets of a storm are notified together, and a ticket's storm never changes."""
    storm_names = ["storm-1"]
    service = TicketService(
        desk.store,
        settings=HealthSettings(),
        clock=lambda: desk.now,
        publish=lambda *_: None,
        group=lambda health, finding: storm_names[0],
    )
    first = (await service.raise_ticket(make_worker(make_finding()), make_draft())).ticket
    storm_names[0] = ""
    ticket_again = (
        await service.raise_ticket(make_worker(make_finding(severity=CRITICAL)), make_draft())
    ).ticket
    is_calm = (await service.raise_ticket(make_worker(make_finding(), session="s2"), make_draft())).ticket

    assert (first.ticket_id, first.storm_id) == (ticket_again.ticket_id, ticket_again.storm_id)
    assert (first.storm_id, is_calm.storm_id) == ("storm-1", "")


async def test_next_deadline_is_cheap_with_many_tickets(desk: TicketDesk) -> None:
    """B131: the cost of a check does not grow with the number of tickets for which nothing is due."""
    count = 0

    def silenced_until(ticket_id: str) -> float | None:
        nonlocal count
        count += 1
        return None

    desk.tickets._deadlines._silenced_until = silenced_until
    for number in range(40):
        report = await desk.raise_(make_worker(make_finding(), agent=f"bee-{number}"))
        await desk.tickets.intervene(report.ticket.ticket_id, "look", "high")
        desk.now += 1
    count = 0

    deadline = desk.tickets.next_deadline()
    await desk.tickets.settle(desk.now)

    assert deadline is not None
    assert deadline > desk.now
    assert count <= 2


async def test_many_tickets_that_are_due_at_once_are_settled_in_several_transactions(
    desk: TicketDesk,
) -> None:
    """B131: other tasks use the event loop and the writer between two tickets."""
    for number in range(120):
        await desk.raise_(make_worker(make_finding(), agent=f"bee-{number}"))
        await desk.tickets.observe(make_worker(agent=f"bee-{number}"))
    commit_sizes: list[int] = []
    desk.tickets._publish = lambda *events: commit_sizes.append(len(events))
    desk.now += HOLD

    closed_tickets = await desk.tickets.settle(desk.now)

    assert len(closed_tickets) == sum(commit_sizes) == 120
    assert max(commit_sizes) <= 50
    assert desk.tickets.next_deadline() is None
