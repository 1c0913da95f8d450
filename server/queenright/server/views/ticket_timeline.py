"""Build the timeline of a ticket from the event log and the notification ledger."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import Connection

from queenright import api
from queenright.alerting.notification_ledger import DeliveredNotification, list_deliveries
from queenright.health.audit.audit_page import read_page
from queenright.health.findings import WorkerKey
from queenright.health.store.former_names import all_names
from queenright.health.tickets.ticket import EscalationTicket
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.views.api_models import make_feed_line

_TICKET_EVENTS: Final = frozenset(
    {
        EventType.WORKER_ESCALATION_TICKET,
        EventType.TICKET_TRIAGED,
        EventType.QUEEN_INTERVENTION_REQUESTED,
        EventType.TICKET_ACKNOWLEDGED,
        EventType.TICKET_UNACKNOWLEDGED,
        EventType.TICKET_REESCALATED,
        EventType.TICKET_RESOLVED,
        EventType.NOTIFICATION_DELIVERED,
        EventType.NOTIFICATION_FAILED,
        EventType.TERMINATION_REQUESTED,
        EventType.TERMINATION_DECIDED,
    }
)
"""Types of events that contain the ticket id."""
_WORKER_EVENTS: Final = frozenset(
    {
        EventType.NUDGE_SENT,
        EventType.ESCALATION_TRIGGERED,
        EventType.ESCALATION_DECIDED,
        EventType.AGENT_TERMINATED,
        EventType.RECOVERY_INITIATED,
        EventType.RECOVERY_COMPLETED,
        EventType.RECOVERY_FAILED,
    }
)
"""Types of events that contain only the worker: interventions while the ticket is live."""
_MAX_ENTRIES: Final = 1000
_AFTER_SECONDS: Final = 60.0
"""Seconds after a ticket's end in which its consequences may still be logged."""


def build_timeline(conn: Connection, ticket: EscalationTicket) -> api.Timeline:
    """
    Return the timeline of a ticket, oldest entry first.

    Args:
        conn: A connection in a transaction.
        ticket: The ticket.
    """
    until = None if ticket.closed_at is None else ticket.closed_at + _AFTER_SECONDS
    names = all_names(conn, ticket.agent_id, ticket.session_id)
    rows = [
        row
        for agent_id in dict(names)
        for row in read_page(
            conn,
            types=_TICKET_EVENTS | _WORKER_EVENTS,
            agent_id=agent_id,
            since=ticket.first_seen,
            until=until,
            limit=_MAX_ENTRIES + 1,
        )
    ]
    rows.sort(key=lambda row: -row.seq)
    events = [AgentEvent(**row.event | {"type": EventType(row.event["type"])}) for row in rows[:_MAX_ENTRIES]]
    entries = [_make_entry(event) for event in reversed(events) if _is_about(event, ticket, names)]
    if ticket.incident_id:
        entries.append(_make_incident_entry(ticket))
    entries += [
        _make_delivery_entry(delivery, ticket.first_seen)
        for delivery in list_deliveries(conn, [ticket.ticket_id]).get(ticket.ticket_id, ())
        if delivery.last_at >= ticket.first_seen
    ]
    return api.Timeline(timeline=sorted(entries, key=lambda entry: entry.at), more=len(rows) > _MAX_ENTRIES)


def _is_about(event: AgentEvent, ticket: EscalationTicket, names: Collection[WorkerKey]) -> bool:
    data: Any = event.data
    if event.type is EventType.WORKER_ESCALATION_TICKET:
        data = event.data.get("ticket") or {}
    if event.type in _TICKET_EVENTS:
        return bool(data.get("ticket_id") == ticket.ticket_id)
    return (event.agent_id, event.session_id) in names


def _make_entry(event: AgentEvent) -> api.TimelineEntry:
    return api.TimelineEntry(
        at=event.time,
        what=event.type.value,
        text=make_feed_line(event).text,
        by=str(event.data.get("by") or ""),
        status="",
        event_id=event.id,
    )


def _make_incident_entry(ticket: EscalationTicket) -> api.TimelineEntry:
    return api.TimelineEntry(
        at=ticket.triaged_at or ticket.first_seen,
        what="incident_joined",
        text=f"This ticket shares the alert of ticket {ticket.incident_id}, which has the same incident.",
        by="",
        status="",
        event_id="",
    )


def _make_delivery_entry(delivery: DeliveredNotification, opened_at: float) -> api.TimelineEntry:
    """Return an entry for the first known delivery since the ticket opened. The last one is always known."""
    text = f"Alertmanager notified {delivery.receiver} ({delivery.status})"
    return api.TimelineEntry(
        at=delivery.first_at if delivery.first_at >= opened_at else delivery.last_at,
        what="receiver_notified",
        text=text,
        by="",
        status=delivery.status,
        event_id="",
    )
