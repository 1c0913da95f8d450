"""Incidents: what tickets have in common that share a cause and were open together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from queenright.health.findings import Severity
from queenright.health.tickets import EscalationTicket

STORM: Final = "storm"
"""The cause of an incident of which no more is known than that many workers got worse at once."""


@dataclass(frozen=True, slots=True)
class Incident:
    """
    Tickets of several workers that are one trouble. Times are in seconds since the epoch.

    It is not stored: its tickets say all of it, after a restart too.
    """

    incident_id: str
    """The id of its first ticket."""
    cause: str
    """``provider:anthropic``, ``mcp:github``, ``tool:search`` or ``storm``."""
    severity: Severity
    """The worst of its tickets, of the open ones while there are any."""
    opened_at: float
    closed_at: float | None
    """When its last ticket closed; None while one is open."""
    workers: int
    open_tickets: int
    ticket_ids: tuple[str, ...]
    """Oldest first."""


def incidents_of(tickets: Iterable[EscalationTicket]) -> list[Incident]:
    """
    Return the incidents that tickets make, newest first; a ticket that shares its cause with none makes none.

    A cause that comes back when all its tickets had closed is another incident.
    """
    by_group: dict[str, list[EscalationTicket]] = defaultdict(list)
    for ticket in sorted(tickets, key=lambda one: (one.first_seen, one.ticket_id)):
        if ticket.storm_id:
            by_group[ticket.storm_id].append(ticket)
    found = [
        _incident(together)
        for group in by_group.values()
        for together in _apart(group)
        if len({one.worker_agent_id for one in together}) > 1
    ]
    return sorted(found, key=lambda one: (one.opened_at, one.incident_id), reverse=True)


def _apart(tickets: Sequence[EscalationTicket]) -> list[list[EscalationTicket]]:
    """Part tickets of one cause where none of those before was open any more."""
    parts: list[list[EscalationTicket]] = []
    until: float | None = 0.0
    for ticket in tickets:
        if not parts or (until is not None and ticket.first_seen > until):
            parts.append([])
            until = 0.0
        parts[-1].append(ticket)
        end = _end(ticket)
        until = None if until is None or end is None else max(until, end)
    return parts


def _end(ticket: EscalationTicket) -> float | None:
    """Return when a ticket stopped to be one that somebody has to see to; None while it is."""
    if ticket.is_open:
        return None
    return ticket.updated_at if ticket.closed_at is None else ticket.closed_at


def _incident(tickets: Sequence[EscalationTicket]) -> Incident:
    still = [one for one in tickets if one.is_open]
    return Incident(
        incident_id=tickets[0].ticket_id,
        cause=tickets[0].storm_id if tickets[0].shares_cause else STORM,
        severity=max((one.severity for one in still or tickets), key=lambda severity: severity.rank),
        opened_at=tickets[0].first_seen,
        closed_at=None if still else max(_end(one) or 0.0 for one in tickets),
        workers=len({(one.worker_agent_id, one.worker_session_id) for one in tickets}),
        open_tickets=len(still),
        ticket_ids=tuple(one.ticket_id for one in tickets),
    )
