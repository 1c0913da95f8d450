"""Determine which workers need a ticket, and which have one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from queenright.health.findings import KINDS_AFTER_END, Finding, FindingKind, WorkerKey, find_worst
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import EscalationTicket
from queenright.health.tickets.ticket_rules import has_current_text, reasons


def reason_for_ticket(health: WorkerHealth) -> Finding | None:
    """
    Return the worst finding that needs a ticket, or None for a worker that is healthy, waits or has ended.

    A failed recovery and repeatedly failing runs need a person even after the worker has ended.
    """
    if not health.findings or health.vitals.may_be_idle:
        return None
    candidates = (finding for finding in health.findings if finding.ticket)
    if health.vitals.has_ended:
        candidates = (finding for finding in candidates if finding.kind in KINDS_AFTER_END)
    return find_worst(candidates)


@dataclass(frozen=True, slots=True)
class _Coverage:
    ticket_id: str
    kinds: frozenset[FindingKind]


class Coverage:
    """
    Maps workers to their tickets, so that a condition with a ticket is not judged again.

    An open ticket covers all findings of its worker while its texts apply and no finding is more severe. A
    dismissed ticket covers only the dismissed findings.
    """

    def __init__(self, tickets: TicketService) -> None:
        self._tickets = tickets
        self._by_worker: dict[WorkerKey, _Coverage] = {}

    def adopt(self, tickets: Iterable[EscalationTicket]) -> None:
        """Load the tickets that were opened before a restart."""
        for ticket in tickets:
            key = (ticket.agent_id, ticket.session_id)
            kinds = {ticket.kind, *ticket.related_kinds, *ticket.active_kinds}
            self._by_worker[key] = _Coverage(ticket.ticket_id, frozenset(kinds))

    def note_ticket(self, health: WorkerHealth, ticket: EscalationTicket) -> None:
        """Record that ``ticket`` covers the worker's findings."""
        kinds = {finding.kind for finding in health.findings if finding.ticket}
        self._by_worker[health.key] = _Coverage(ticket.ticket_id, frozenset(kinds))

    def covers(self, health: WorkerHealth, finding: Finding) -> bool:
        """Return whether a ticket covers ``finding``, the worker's worst finding."""
        ticket = self.find_ticket(health.key)
        if ticket is None or finding.severity.rank > ticket.severity.rank:
            return False
        if ticket.is_open:
            return has_current_text(ticket, reasons(health))
        kinds = {f.kind for f in health.findings if f.ticket}
        return kinds <= self._by_worker[health.key].kinds

    def is_outdated(self, health: WorkerHealth) -> bool:
        """Return whether a worker's open ticket has outdated texts, while no finding is more severe."""
        ticket, finding = self.find_ticket(health.key), reason_for_ticket(health)
        if ticket is None or not ticket.is_open or finding is None:
            return False
        return finding.severity.rank <= ticket.severity.rank and not self.covers(health, finding)

    def find_ticket(self, key: WorkerKey) -> EscalationTicket | None:
        """Return a worker's live ticket, or None."""
        coverage = self._by_worker.get(key)
        if coverage is None:
            return None
        ticket = self._tickets.get(coverage.ticket_id)
        if ticket is None or not ticket.is_live:
            del self._by_worker[key]
            return None
        return ticket

    def workers(self) -> list[WorkerKey]:
        """Return the workers with a live ticket."""
        return [key for key in list(self._by_worker) if self.find_ticket(key) is not None]
