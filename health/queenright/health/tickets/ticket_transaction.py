"""A transaction of the ticket service. It writes tickets, collects their events, and updates the outbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from sqlalchemy import Connection, bindparam, select

from queenright.health.findings import Finding
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.store.former_names import all_names
from queenright.health.store.tables import EVENTS
from queenright.health.tickets import ticket_lifecycle as lifecycle
from queenright.health.tickets import ticket_rules as rules
from queenright.health.tickets import ticket_table as table
from queenright.health.tickets.ticket import EscalationTicket, TicketNotFoundError, TicketStatus
from queenright.health.tickets.ticket_lifecycle import TicketChange
from queenright.health.vitals.vital_facts import count_or_zero, parse_dollars
from queenright.runtime.events import AgentEvent, EventType

OnChange = Callable[[Connection, EscalationTicket], None]
"""Called in the transaction of every change that must be notified."""
DecisionResult = tuple[EscalationTicket, list[AgentEvent]]
"""The changed ticket and the events of a decision."""
Decide = Callable[["TicketTransaction", EscalationTicket], DecisionResult]
"""Applies a decision to a ticket, or raises if it does not apply."""


@dataclass(frozen=True, slots=True)
class TicketReportResult:
    """A ticket after a report, and what the report changed."""

    ticket: EscalationTicket
    change: TicketChange


@dataclass(slots=True)
class TicketTransaction:
    """The changes of one transaction. Their events are published after the commit."""

    conn: Connection
    ids: Callable[[], str]
    on_change: OnChange | None
    tickets: list[EscalationTicket] = field(default_factory=list)
    events: list[AgentEvent] = field(default_factory=list)

    def find(self, ticket_id: str) -> EscalationTicket | None:
        """Return the ticket with this id, or None."""
        return table.find_ticket(self.conn, ticket_id)

    def get(self, ticket_id: str) -> EscalationTicket:
        """Return the ticket with this id. Raises ``TicketNotFoundError`` if there is none."""
        ticket = self.find(ticket_id)
        if ticket is None:
            raise TicketNotFoundError(ticket_id)
        return ticket

    def update(self, ticket: EscalationTicket) -> None:
        """Write a changed ticket."""
        table.write_ticket(self.conn, ticket)
        self.tickets.append(ticket)

    def write_report(self, ticket: EscalationTicket, change: TicketChange) -> TicketReportResult:
        """Write a ticket after a report, with its spending and its event."""
        ticket = self._add_spending(ticket)
        store = table.insert_ticket if change == "opened" else table.write_ticket
        store(self.conn, ticket)
        return self._add_report(ticket, change)

    def apply_findings(
        self,
        ticket: EscalationTicket,
        health: WorkerHealth,
        findings: Sequence[Finding],
        now: float,
        *,
        is_other_open: bool,
    ) -> bool:
        """Apply findings to a live ticket, and return whether it is open afterwards."""
        updated_ticket, change = rules.apply_findings(ticket, findings, now, is_other_open=is_other_open)
        if updated_ticket is not ticket:
            if change != "counted" or updated_ticket.occurrences != ticket.occurrences:
                updated_ticket = updated_ticket.model_copy(
                    update=rules.finding_fields(health, updated_ticket, findings)
                )
                updated_ticket = self._add_spending(updated_ticket)
            table.write_ticket(self.conn, updated_ticket)
            self._add_report(updated_ticket, change)
            self.notify_new_trouble(ticket, updated_ticket, now)
        return updated_ticket.is_open

    def decide(self, ticket_id: str, decide: Decide, *, notify_people: bool) -> EscalationTicket:
        """Apply a decision to a ticket. With ``notify_people``, also update its notification."""
        updated_ticket, events = decide(self, self.get(ticket_id))
        self.update(updated_ticket)
        self.events.extend(events)
        if notify_people:
            self.notify(updated_ticket)
        return updated_ticket

    def close(self, ticket: EscalationTicket, *, by: str | None = None, worker_dead: bool = False) -> None:
        """Write a ticket that has closed, with its spending and its event."""
        ticket = self._add_spending(ticket)
        self.update(ticket)
        if ticket.status is TicketStatus.DISMISSED:
            return
        data: dict[str, Any] = {
            "ticket_id": ticket.ticket_id,
            "status": ticket.status.value,
            "reason": ticket.closed_reason,
        }
        if by is not None:
            data["by"] = by
        if worker_dead:
            data["worker_dead"] = True
        self.events.append(self.event(ticket, EventType.TICKET_RESOLVED, data))
        self.notify(ticket)

    def remind(self, before: EscalationTicket, now: float, *, is_request: bool = False) -> None:
        """Remind people of a ticket, and count the reminder on the tickets of its incident."""
        ticket = lifecycle.remind(before, now=now, is_request=is_request)
        others = table.live_tickets(self.conn, agent_id=before.agent_id)
        self.update(ticket)
        for other in others:
            if lifecycle.is_reminded_with(before, other):
                self.update(lifecycle.remind(other, now=now, is_request=is_request))
        data = {
            "ticket_id": ticket.ticket_id,
            "reminder": ticket.reminders,
            "is_request": is_request,
            "severity": ticket.severity.value,
            "unacknowledged_seconds": now - (ticket.incident_since or ticket.notified_at or now),
        }
        self.events.append(self.event(ticket, EventType.TICKET_REESCALATED, data))
        self.notify(ticket)

    def notify(self, ticket: EscalationTicket) -> None:
        """Update the notification of a changed ticket."""
        if self.on_change is not None and ticket.notified_severity is not None:
            self.on_change(self.conn, ticket)

    def notify_new_trouble(self, before: EscalationTicket, ticket: EscalationTicket, now: float) -> None:
        """Notify people again if the session of a ticket about failed runs has other trouble."""
        if not rules.has_new_trouble(before, ticket):
            return
        if ticket.status is TicketStatus.INTERVENING:
            self.remind(ticket, now, is_request=True)
        else:
            self.notify(ticket)

    def event(self, ticket: EscalationTicket, event_type: EventType, data: dict[str, Any]) -> AgentEvent:
        """Return an event about a ticket. The caller adds it to ``events``."""
        return AgentEvent(
            id=self.ids(),
            type=event_type,
            time=ticket.updated_at,
            agent_id=ticket.agent_id,
            session_id=ticket.session_id,
            incarnation_id=ticket.incarnation_id,
            graph_id=ticket.graph_id,
            node_id=ticket.node_id,
            trace_id=ticket.trace_id,
            span_id=ticket.span_id,
            data=data,
        )

    def _add_report(self, ticket: EscalationTicket, change: TicketChange) -> TicketReportResult:
        self.tickets.append(ticket)
        if change != "counted":
            data = {"ticket": ticket.model_dump(mode="json"), "change": change}
            self.events.append(self.event(ticket, EventType.WORKER_ESCALATION_TICKET, data))
        if change == "rose":
            self.notify(ticket)
        return TicketReportResult(ticket, change)

    def _add_spending(self, ticket: EscalationTicket) -> EscalationTicket:
        if ticket.trouble_since is None:
            return ticket
        key = ticket.agent_id, ticket.session_id
        return ticket.model_copy(update=spending_since(self.conn, *key, ticket.trouble_since))


_MAX_CALLS: Final = 2_000
"""The maximum number of an agent's model calls to read, newest first."""
_LAST_CALLS: Final = (
    select(EVENTS.c.session_id, EVENTS.c.time, EVENTS.c.data)
    .where(EVENTS.c.agent_id == bindparam("agent"), EVENTS.c.type == EventType.LLM_CALL_COMPLETED.value)
    .order_by(EVENTS.c.seq.desc())
    .limit(_MAX_CALLS)
    .subquery()
)
_SPENDING_QUERY: Final = select(_LAST_CALLS.c.data).where(
    _LAST_CALLS.c.session_id == bindparam("session"), _LAST_CALLS.c.time >= bindparam("since")
)


def spending_since(conn: Connection, agent_id: str, session_id: str, since: float) -> dict[str, Any]:
    """
    Return the cost of a run's model calls since a time, as fields of a ticket.

    ``spent_usd`` is None if no price is known. ``spent_unpriced_tokens`` counts the tokens of calls without a
    price.
    """
    return total_spending(
        orjson.loads(data)
        for agent, session in all_names(conn, agent_id, session_id)
        for data in conn.execute(
            _SPENDING_QUERY, {"agent": agent, "session": session, "since": since}
        ).scalars()
    )


def total_spending(calls: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the total cost of calls from the data of their events. An amendment adds a price to a call."""
    dollars: float | None = None
    tokens = unpriced_tokens = 0
    for data in calls:
        cost = parse_dollars(data.get("cost_usd"))
        if cost is not None:
            dollars = (dollars or 0.0) + cost
        if data.get("amends"):
            unpriced_tokens -= count_or_zero(data.get("priced_tokens"))
            continue
        amount = count_or_zero(data.get("input_tokens")) + count_or_zero(data.get("output_tokens"))
        tokens += amount
        if cost is None:
            unpriced_tokens += amount
    return {
        "spent_usd": dollars,
        "spent_tokens": tokens,
        "spent_unpriced_tokens": min(max(unpriced_tokens, 0), tokens),
    }
