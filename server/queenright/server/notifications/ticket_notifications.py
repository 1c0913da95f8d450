"""The last step of an event's way: a ticket's notification is written in the ticket's own transaction."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sqlalchemy import Connection

from queenright.alerting.notification import find_joined
from queenright.alerting.outbox import Outbox, enqueue
from queenright.health.incidents import INCIDENT_SECONDS, ended_in_incident
from queenright.health.interventions.approval import Approval
from queenright.health.monitor import HealthMonitor
from queenright.health.ticket_table import find_ticket, recent_tickets
from queenright.health.tickets import EscalationTicket
from queenright.runtime.events import Clock
from queenright.server.notifications.earlier_sessions import (
    RECENT_SECONDS,
    SHORT_SECONDS,
    EarlierSessions,
    find_earlier_sessions,
)
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
        """Write a ticket's notification; the decision and its notification are one transaction."""
        health = self.settings.health_monitoring
        earlier = self._find_earlier_sessions(connection, ticket)
        enqueue(
            connection,
            ticket,
            self.settings.alerting,
            self.clock(),
            requests=find_requests(connection, ticket, health.intervention),
            earlier_tickets=earlier.tickets,
            is_replaced=earlier.is_replaced,
            hold_seconds=max(
                SHORT_SECONDS if earlier.is_recurring else 0.0,
                INCIDENT_SECONDS if ended_in_incident(ticket) else 0.0,
            ),
        )
        self.loop.call_soon_threadsafe(self.outbox.wake)

    def write_approval(self, connection: Connection, approval: Approval) -> None:
        """Update the notification of a ticket when its approval request is made or answered."""
        ticket = find_ticket(connection, approval.ticket_id)
        if ticket is not None and ticket.is_live and ticket.notified_severity is not None:
            self.write(connection, ticket)

    def find_joined(self, connection: Connection, ticket: EscalationTicket) -> EscalationTicket | None:
        """Return the ticket of an earlier session whose incident a new ticket joins, if there is one."""
        earlier_tickets = self._find_earlier_sessions(connection, ticket).tickets
        ticket_id = find_joined(connection, ticket, earlier_tickets, self.clock())
        return None if ticket_id is None else find_ticket(connection, ticket_id)

    def _find_earlier_sessions(self, connection: Connection, ticket: EscalationTicket) -> EarlierSessions:
        agent_id, now = ticket.agent_id, self.clock()
        if self.monitor.get(agent_id, ticket.session_id) is None:
            return EarlierSessions()
        others = recent_tickets(connection, agent_id, ticket.kind, now - RECENT_SECONDS)
        session_ids = {each.session_id for each in (ticket, *others)}
        workers = {session_id: self.monitor.get(agent_id, session_id) for session_id in session_ids}
        sessions = {session_id: worker.vitals for session_id, worker in workers.items() if worker is not None}
        return find_earlier_sessions(ticket, others, sessions, now)
