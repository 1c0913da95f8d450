"""Incidents: tickets with a shared cause that were open at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets import EscalationTicket

STORM: Final = "storm"
"""The cause of an incident of which only the storm is known."""


@dataclass(frozen=True, slots=True)
class Incident:
    """
    Tickets of several workers with one cause. Times are in seconds since the epoch.

    It is not stored, but derived from its tickets.
    """

    incident_id: str
    """The id of its first ticket."""
    cause: str
    """``provider:anthropic``, ``mcp:github``, ``tool:search`` or ``storm``."""
    severity: Severity
    """The worst severity of its open tickets, or of all once none is open."""
    opened_at: float
    closed_at: float | None
    """When its last ticket closed; None while one is open."""
    workers: int
    open_tickets: int
    ticket_ids: tuple[str, ...]
    """Oldest first."""


def incidents_of(tickets: Iterable[EscalationTicket]) -> list[Incident]:
    """
    Group tickets into incidents, newest first. A ticket without a shared cause belongs to none.

    A cause that returns after all its tickets had closed is another incident.
    """
    by_group: dict[str, list[EscalationTicket]] = defaultdict(list)
    for ticket in sorted(tickets, key=lambda one: (one.first_seen, one.ticket_id)):
        if ticket.storm_id:
            by_group[ticket.storm_id].append(ticket)
    incidents = [
        _incident(one)
        for group in by_group.values()
        for one in _split(group)
        if len({_worker(ticket) for ticket in one}) > 1
    ]
    return sorted(incidents, key=lambda one: (one.opened_at, one.incident_id), reverse=True)


def _worker(ticket: EscalationTicket) -> tuple[str, str]:
    """Return whose ticket it is: a session's, or for failed runs the agent's."""
    of_runs = ticket.kind is FindingKind.RUNS_FAILED
    return ticket.worker_agent_id, "" if of_runs else ticket.worker_session_id


def _split(tickets: Sequence[EscalationTicket]) -> list[list[EscalationTicket]]:
    """Split tickets of one cause where all earlier ones had closed."""
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
    """Return when a ticket stopped being open, or None."""
    if ticket.is_open:
        return None
    return ticket.updated_at if ticket.closed_at is None else ticket.closed_at


def _incident(tickets: Sequence[EscalationTicket]) -> Incident:
    still_open = [one for one in tickets if one.is_open]
    return Incident(
        incident_id=tickets[0].ticket_id,
        cause=tickets[0].storm_id if tickets[0].shares_cause else STORM,
        severity=max((one.severity for one in still_open or tickets), key=lambda severity: severity.rank),
        opened_at=tickets[0].first_seen,
        closed_at=None if still_open else max(_end(one) or 0.0 for one in tickets),
        workers=len({_worker(one) for one in tickets}),
        open_tickets=len(still_open),
        ticket_ids=tuple(one.ticket_id for one in tickets),
    )
