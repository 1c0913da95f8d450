"""Incidents: groups of tickets with a shared cause that were open at the same time."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus

INCIDENT_SECONDS: Final = 600.0
"""The seconds for which a worker counts for an incident after its last activity or its end."""
STORM: Final = "storm"
"""The cause of an incident without a known shared cause."""


@dataclass(frozen=True, slots=True)
class Incident:
    """
    Tickets of several workers with one cause. Times are in seconds since the epoch.

    An incident is not stored, but derived from its tickets.
    """

    incident_id: str
    """The id of its first ticket."""
    group: str
    """The cause that its tickets share, or the id of the storm."""
    cause: str
    """``provider:anthropic``, ``mcp:github``, ``tool:search`` or ``storm``."""
    severity: Severity
    """The worst severity of its open tickets, or of all its tickets if none is open."""
    opened_at: float
    closed_at: float | None
    """
    When its last ticket closed, or stopped counting after its session ended; None while the incident is open.
    """
    ends_at: float | None
    """When it closes if nothing else fails, or when it closed; None while a ticket is open."""
    workers: int
    open_tickets: int
    ticket_ids: tuple[str, ...]
    """Oldest first."""


def ended_in_incident(ticket: EscalationTicket) -> bool:
    """Return whether the session of a ticket ended while its shared cause held."""
    is_gone = ticket.status is TicketStatus.WORKER_GONE
    return is_gone and ticket.shares_cause and ticket.condition_cleared_at is None


def counts_after_its_end(ticket: EscalationTicket, now: float) -> bool:
    """Return whether a ticket still counts for its incident after its session has ended."""
    closed_at = ticket.closed_at
    return ended_in_incident(ticket) and closed_at is not None and now < closed_at + INCIDENT_SECONDS


def incidents_of(
    tickets: Iterable[EscalationTicket], *, now: float, least_workers: int = 2
) -> list[Incident]:
    """
    Group tickets into incidents, newest first. Tickets without a shared cause are left out.

    The end of a session does not show that its cause has ended. So its ticket keeps the incident open until
    calls of another session succeed, but for at most ``INCIDENT_SECONDS``. A cause that returns after all its
    tickets have closed is another incident.

    Args:
        least_workers: The minimum number of workers of an incident.
    """
    by_group: dict[str, list[EscalationTicket]] = defaultdict(list)
    for ticket in sorted(tickets, key=lambda ticket: (ticket.first_seen, ticket.ticket_id)):
        if ticket.storm_id:
            by_group[ticket.storm_id].append(ticket)
    incidents = [
        _make_incident(part, ends, now)
        for group in by_group.values()
        for ends in [_ends(group)]
        for part in _split_incidents(group, ends)
        if len({_get_owner(ticket) for ticket in part}) >= least_workers
    ]
    return sorted(incidents, key=lambda incident: (incident.opened_at, incident.incident_id), reverse=True)


def _get_owner(ticket: EscalationTicket) -> tuple[str, str]:
    """Return the owner of a ticket: the session, or the agent if the ticket is about failed runs."""
    is_about_runs = ticket.kind is FindingKind.RUNS_FAILED
    return ticket.agent_id, "" if is_about_runs else ticket.session_id


def _split_incidents(
    tickets: Sequence[EscalationTicket], ends: Mapping[str, float | None]
) -> list[list[EscalationTicket]]:
    """Split tickets of one cause at each point where all earlier tickets had closed."""
    parts: list[list[EscalationTicket]] = []
    until: float | None = 0.0
    for ticket in tickets:
        if not parts or (until is not None and ticket.first_seen > until):
            parts.append([])
            until = 0.0
        parts[-1].append(ticket)
        end = ends[ticket.ticket_id]
        until = None if until is None or end is None else max(until, end)
    return parts


def _ends(tickets: Sequence[EscalationTicket]) -> dict[str, float | None]:
    """Return when each ticket of one cause stops keeping its incident open, or None while it is open."""
    successes = sorted(
        ticket.condition_cleared_at for ticket in tickets if ticket.condition_cleared_at is not None
    )
    ends: dict[str, float | None] = {}
    for ticket in tickets:
        end = ticket.updated_at if ticket.closed_at is None else ticket.closed_at
        if ended_in_incident(ticket):
            next_success = bisect_left(successes, end)
            end = min([end + INCIDENT_SECONDS, *successes[next_success : next_success + 1]])
        ends[ticket.ticket_id] = None if ticket.is_open else end
    return ends


def _make_incident(
    tickets: Sequence[EscalationTicket], ends: Mapping[str, float | None], now: float
) -> Incident:
    open_tickets = [ticket for ticket in tickets if ticket.is_open]
    end = max(ends[ticket.ticket_id] or 0.0 for ticket in tickets)
    return Incident(
        incident_id=tickets[0].ticket_id,
        group=tickets[0].storm_id,
        cause=tickets[0].storm_id if tickets[0].shares_cause else STORM,
        severity=max(
            (ticket.severity for ticket in open_tickets or tickets), key=lambda severity: severity.rank
        ),
        opened_at=tickets[0].first_seen,
        closed_at=None if open_tickets or end > now else end,
        ends_at=None if open_tickets else end,
        workers=len({_get_owner(ticket) for ticket in tickets}),
        open_tickets=len(open_tickets),
        ticket_ids=tuple(ticket.ticket_id for ticket in tickets),
    )


class IncidentWatch:
    """Finds the incidents that have closed, because a ticket closed or time has passed."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        """The open incident of each group of tickets."""
        self._changes: set[str] = set()
        self._ends: dict[str, float] = {}

    def add(self, ticket: EscalationTicket) -> None:
        """Record a new or changed ticket."""
        if ticket.storm_id:
            self._changes.add(ticket.storm_id)

    def restore(
        self, tickets: Iterable[EscalationTicket], reported_ids: Collection[str], since: float
    ) -> None:
        """Also report the incidents that closed after ``since``, except those in ``reported_ids``."""
        for group, latest in self._find_latest(tickets, now=since).items():
            if latest.incident_id not in reported_ids and (latest.ends_at is None or latest.ends_at > since):
                self._open[group] = latest.incident_id

    def list_closed(self, tickets: Iterable[EscalationTicket], now: float) -> dict[str, Incident]:
        """
        Return the incidents that have closed, by group. They are returned again until ``remove`` is called.

        Args:
            tickets: All recent tickets.
        """
        self._changes.update(group for group, end in self._ends.items() if end <= now)
        if not self._changes:
            return {}
        latest_incidents = self._find_latest(
            (ticket for ticket in tickets if ticket.storm_id in self._changes), now
        )
        closures = {}
        for group in self._changes:
            self._ends.pop(group, None)
            latest = latest_incidents.get(group)
            if latest is None:
                self._open.pop(group, None)
            elif latest.closed_at is not None:
                if group in self._open:
                    closures[group] = latest
            else:
                self._open[group] = latest.incident_id
                if latest.ends_at is not None:
                    self._ends[group] = latest.ends_at
        self._changes = set(closures)
        return closures

    def remove(self, groups: Iterable[str]) -> None:
        """Remove incidents that have closed from the result of ``list_closed``."""
        for group in groups:
            self._open.pop(group, None)

    def _find_latest(self, tickets: Iterable[EscalationTicket], now: float) -> dict[str, Incident]:
        all_tickets = list(tickets)
        groups = {ticket.ticket_id: ticket.storm_id for ticket in all_tickets}
        latest = reversed(incidents_of(all_tickets, now=now))
        return {groups[incident.incident_id]: incident for incident in latest}
