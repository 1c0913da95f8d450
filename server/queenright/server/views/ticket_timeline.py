"""The story of a ticket: what the log and the book of the told say of it, oldest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection

from queenright.alerting.notification_ledger import DeliveredNotification, told_of
from queenright.health.audit_page import read_page
from queenright.health.tickets import EscalationTicket
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.views.view import event_line

_OF_THE_TICKET: Final = frozenset(
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
"""They name the ticket."""
_OF_THE_WORKER: Final = frozenset(
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
"""They name the worker: what was done to it while the ticket was live."""
_MOST: Final = 1000
_AFTER: Final = 60.0
"""Seconds after the end in which what follows from it may be logged."""


def timeline(conn: Connection, ticket: EscalationTicket) -> tuple[list[dict[str, Any]], bool]:
    """
    Return what happened, as JSON values, and whether there was more before it.

    Args:
        conn: A connection in a transaction.
        ticket: The ticket.
    """
    until = None if ticket.closed_at is None else ticket.closed_at + _AFTER
    rows = read_page(
        conn,
        types=_OF_THE_TICKET | _OF_THE_WORKER,
        agent_id=ticket.worker_agent_id,
        since=ticket.first_seen,
        until=until,
        limit=_MOST + 1,
    )
    events = [AgentEvent(**row.event | {"type": EventType(row.event["type"])}) for row in rows[:_MOST]]
    found = [_entry(event) for event in reversed(events) if _is_about(event, ticket)]
    found += _joined(ticket)
    found += _told(told_of(conn, [ticket.ticket_id]).get(ticket.ticket_id, ()))
    return sorted(found, key=lambda one: float(one["at"])), len(rows) > _MOST


def _is_about(event: AgentEvent, ticket: EscalationTicket) -> bool:
    said: Any = event.data
    if event.type is EventType.WORKER_ESCALATION_TICKET:
        said = event.data.get("ticket") or {}
    if event.type in _OF_THE_TICKET:
        return bool(said.get("ticket_id") == ticket.ticket_id)
    return event.session_id == ticket.worker_session_id


def _entry(event: AgentEvent) -> dict[str, Any]:
    return {
        "at": event.time,
        "what": event.type.value,
        "text": event_line(event)["text"],
        "by": str(event.data.get("by") or ""),
        "event_id": event.id,
    }


def _joined(ticket: EscalationTicket) -> list[dict[str, Any]]:
    """Return that a ticket joined another's alert, when it was triaged; nothing if it has its own."""
    if not ticket.incident_id:
        return []
    return [
        {
            "at": ticket.triaged_at or ticket.first_seen,
            "what": "incident_joined",
            "text": f"It joined the alert of ticket {ticket.incident_id}; no notification was sent.",
            "by": "",
            "event_id": "",
        }
    ]


def _told(told: Iterable[DeliveredNotification]) -> list[dict[str, Any]]:
    what = {"firing": "told of it", "resolved": "told of its end"}
    return [
        {
            "at": one.first_at,
            "what": "told",
            "text": f"Alertmanager: {one.receiver} was {what.get(one.status, 'told')}",
            "by": "",
            "event_id": "",
        }
        for one in told
    ]
