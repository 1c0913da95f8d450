"""Write a ticket's notification in the ticket's transaction: the last step of an event's path."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from queenright.alerting.notification_rules import find_joined
from queenright.alerting.outbox import Outbox, enqueue
from queenright.health.detection.deadlines import has_shown_its_end
from queenright.health.findings import FindingKind
from queenright.health.interventions.approval import Approval
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.tickets.incidents import INCIDENT_SECONDS, ended_in_incident
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.tickets.ticket_table import find_ticket, recent_tickets
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.runtime.events import Clock
from queenright.server.notifications.operator_requests import find_requests
from queenright.server.settings import Settings


@dataclass(kw_only=True, eq=False)
class TicketNotifications:
    """Writes tickets to the outbox. Its methods run in the store's writer thread."""

    settings: Settings
    """Replaced when the settings are reloaded."""
    monitor: HealthMonitor
    outbox: Outbox
    clock: Clock
    loop: asyncio.AbstractEventLoop

    def write(self, connection: Connection, ticket: EscalationTicket) -> None:
        """Write a ticket's notification in the transaction of the decision."""
        health = self.settings.health_monitoring
        earlier_sessions = self._find_earlier_sessions(connection, ticket)
        enqueue(
            connection,
            ticket,
            self.settings.alerting,
            self.clock(),
            requests=find_requests(connection, ticket, health.intervention),
            earlier_tickets=earlier_sessions.tickets,
            is_replaced=earlier_sessions.is_replaced,
            hold_seconds=max(
                SHORT_SECONDS if earlier_sessions.is_recurring else 0.0,
                INCIDENT_SECONDS if ended_in_incident(ticket) else 0.0,
            ),
        )
        self.loop.call_soon_threadsafe(self.outbox.wake)

    def write_approval(self, connection: Connection, approval: Approval) -> None:
        """Update the notification of a ticket when its approval request changes."""
        ticket = find_ticket(connection, approval.ticket_id)
        if ticket is not None and ticket.is_live and ticket.notified_severity is not None:
            self.write(connection, ticket)

    def find_joined(self, connection: Connection, ticket: EscalationTicket) -> EscalationTicket | None:
        """Return the ticket of an earlier session whose PagerDuty incident a new ticket joins, or None."""
        earlier_tickets = self._find_earlier_sessions(connection, ticket).tickets
        ticket_id = find_joined(connection, ticket, earlier_tickets, self.clock())
        return None if ticket_id is None else find_ticket(connection, ticket_id)

    def _find_earlier_sessions(self, connection: Connection, ticket: EscalationTicket) -> EarlierSessions:
        agent_id, now = ticket.agent_id, self.clock()
        if self.monitor.get(agent_id, ticket.session_id) is None:
            return EarlierSessions()
        other_tickets = recent_tickets(connection, agent_id, ticket.kind, now - RECENT_SECONDS)
        session_ids = {each.session_id for each in (ticket, *other_tickets)}
        workers = {session_id: self.monitor.get(agent_id, session_id) for session_id in session_ids}
        sessions = {session_id: worker.vitals for session_id, worker in workers.items() if worker is not None}
        return find_earlier_sessions(ticket, other_tickets, sessions, now)


RECENT_SECONDS: Final = 3600.0
"""Seconds for which earlier sessions of an agent are counted."""
SHORT_SECONDS: Final = 600.0
"""Longer sessions, and those that start this long after the previous one, are not part of a crash loop."""

_SILENT_SESSIONS: Final = 2
"""Number of recently notified sessions from which a silent session counts as crashed."""


@dataclass(frozen=True, slots=True)
class EarlierSessions:
    """Earlier tickets of the same agent and cause."""

    tickets: tuple[str, ...] = ()
    """Tickets whose alert the new ticket joins if it fires, newest first."""
    is_recurring: bool = False
    """Whether people were notified of an earlier session within the last hour."""
    is_replaced: bool = False
    """Whether a newer incarnation runs in the ticket's own session."""


def find_earlier_sessions(
    ticket: EscalationTicket,
    others: Iterable[EscalationTicket],
    sessions: Mapping[str, VitalSigns],
    now: float,
) -> EarlierSessions:
    """
    Find the tickets of earlier sessions of a ticket's agent with the same cause.

    A session is earlier if its last event is before this session began. The agent is in a crash loop if this
    session was short and began soon after the earlier one; any other problem is notified separately. A
    session without heartbeats that did not report its end may be silent or dead. It counts as dead if two
    sessions were notified within the hour.

    A failed recovery needs a person for each run. From the third within an hour, it joins a ticket that is
    not acknowledged. No ticket joins an incident that a person has resolved in PagerDuty.

    Args:
        ticket: The new ticket.
        others: Tickets of the same agent and cause, newest first.
        sessions: The vital signs of the agent's sessions, by session id.
        now: Seconds since the epoch.
    """
    session = sessions.get(ticket.session_id)
    if session is None:
        return EarlierSessions()
    started_at = session.incarnation_started
    earlier_tickets = [
        other
        for other in others
        if other.notified_at is not None
        and other.notified_at > now - RECENT_SECONDS
        and other.ticket_id != ticket.ticket_id
        and _is_earlier(other, ticket, sessions.get(other.session_id), started_at)
    ]
    has_many = len(earlier_tickets) >= _SILENT_SESSIONS
    resolved_incidents = {
        ticket.incident for ticket in earlier_tickets if ticket.incident_resolved_at is not None
    }
    unresolved_tickets = [ticket for ticket in earlier_tickets if ticket.incident not in resolved_incidents]
    if ticket.kind is FindingKind.RECOVERY_FAILED:
        joinable_tickets = [
            ticket for ticket in unresolved_tickets if has_many and not ticket.acknowledged_by
        ]
    elif session.last_event - started_at > SHORT_SECONDS:
        joinable_tickets = []
    else:
        joinable_tickets = [
            ticket
            for ticket in unresolved_tickets
            if _has_ended_recently(ticket, sessions.get(ticket.session_id), started_at)
            and (has_many or _is_known_to_have_ended(ticket, sessions.get(ticket.session_id)))
        ]
    ids = tuple(earlier.ticket_id for earlier in joinable_tickets)
    is_replaced = session.incarnation_id not in ("", ticket.incarnation_id)
    return EarlierSessions(ids, bool(earlier_tickets), is_replaced)


def _is_earlier(
    earlier: EscalationTicket, ticket: EscalationTicket, session: VitalSigns | None, started_at: float
) -> bool:
    if earlier.session_id == ticket.session_id:
        # Another process restarted the same session.
        return earlier.closed_at is not None and earlier.incarnation_id != ticket.incarnation_id
    if session is not None:
        return session.last_event <= started_at
    return earlier.closed_at is not None and earlier.closed_at <= started_at


def _has_ended_recently(earlier: EscalationTicket, session: VitalSigns | None, started_at: float) -> bool:
    ended_at = session.last_event if session is not None else earlier.closed_at or 0.0
    return started_at - ended_at <= SHORT_SECONDS


def _is_known_to_have_ended(earlier: EscalationTicket, session: VitalSigns | None) -> bool:
    return session is None or has_shown_its_end(session) or earlier.status is TicketStatus.WORKER_GONE
