"""The times at which tickets are due, because their hold ends or a reminder is due."""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heappop, heappush

from queenright.health.settings import TicketSettings
from queenright.health.tickets import ticket_lifecycle as lifecycle
from queenright.health.tickets.ticket import EscalationTicket


class TicketDeadlines:
    """
    The deadlines of all live tickets, in a heap.

    Args:
        silenced_until: Returns when a ticket's silence ends, in seconds since the epoch, or None. A silence
            only defers reminders. It is called from several threads.
    """

    def __init__(
        self, settings: TicketSettings, silenced_until: Callable[[str], float | None] | None = None
    ) -> None:
        self._silenced_until = silenced_until
        self._tickets: dict[str, EscalationTicket] = {}
        self._heap: list[tuple[float, str]] = []
        """Times and tickets, without taking silences into account."""
        self._due_times: dict[str, float] = {}
        """The time of each ticket's valid heap entry."""
        self._overdue_ids: set[str] = set()
        """Tickets that have not changed since their deadline passed. They may be silenced."""
        self.replace_settings(settings)

    def replace_settings(self, settings: TicketSettings) -> None:
        """Replace the settings, including those of scheduled tickets."""
        self.hold = settings.hold_seconds
        self._remind_after = settings.re_escalation.after_minutes * 60
        self._max_reminders = settings.re_escalation.max
        for ticket in list(self._tickets.values()):
            self.schedule(ticket)

    def schedule(self, ticket: EscalationTicket) -> None:
        """Schedule a new or changed ticket. A closed ticket is removed."""
        ticket_id = ticket.ticket_id
        self._overdue_ids.discard(ticket_id)
        at = None
        if ticket.is_live:
            self._tickets[ticket_id] = ticket
            at = lifecycle.hold_ends(ticket, self.hold)
            if at is None:
                at = self._find_reminder_time(ticket)
        else:
            self._tickets.pop(ticket_id, None)
        if at is None:
            self._due_times.pop(ticket_id, None)
        elif self._due_times.get(ticket_id) != at:
            self._due_times[ticket_id] = at
            heappush(self._heap, (at, ticket_id))

    def next_due_at(self) -> float | None:
        """Return when the next ticket is due, in seconds since the epoch, or None."""
        while self._heap:
            at, ticket_id = self._heap[0]
            if self._due_times.get(ticket_id) == at and self._find_due_time(self._tickets[ticket_id]) == at:
                break
            self._pop_first()
        deadlines = [self._find_due_time(self._tickets[ticket_id]) for ticket_id in self._overdue_ids]
        deadlines += [at for at, _ in self._heap[:1]]
        return min((at for at in deadlines if at is not None), default=None)

    def due_ids(self, now: float, exclude: Collection[str] = ()) -> list[str]:
        """Return the ids of the tickets that are due, oldest first. They stay due until they change."""
        while self._heap and self._heap[0][0] <= now:
            self._pop_first()
        tickets = [self._tickets[ticket_id] for ticket_id in self._overdue_ids if ticket_id not in exclude]
        due_tickets = [
            ticket for ticket in tickets if (at := self._find_due_time(ticket)) is not None and at <= now
        ]
        return [t.ticket_id for t in sorted(due_tickets, key=lambda t: (t.first_seen, t.ticket_id))]

    def reminder_at(self, ticket: EscalationTicket) -> float | None:
        """Return when people are reminded of a ticket, or None. A silence defers the reminder."""
        at = self._find_reminder_time(ticket)
        if at is None or self._silenced_until is None:
            return at
        silence_end = self._silenced_until(ticket.ticket_id)
        return at if silence_end is None else max(at, silence_end)

    def _find_due_time(self, ticket: EscalationTicket) -> float | None:
        # There are no reminders during the hold.
        hold_end = lifecycle.hold_ends(ticket, self.hold)
        return self.reminder_at(ticket) if hold_end is None else hold_end

    def _find_reminder_time(self, ticket: EscalationTicket) -> float | None:
        return lifecycle.remind_at(ticket, after=self._remind_after, most=self._max_reminders)

    def _pop_first(self) -> None:
        at, ticket_id = heappop(self._heap)
        if self._due_times.get(ticket_id) == at:
            del self._due_times[ticket_id]
            self._overdue_ids.add(ticket_id)
