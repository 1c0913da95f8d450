"""When a ticket is due, because its hold ends or people must be reminded to acknowledge it."""

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
        silenced_until: Returns until when a ticket is silenced, in seconds since the epoch, or None; it only
            defers a reminder. It is called from several threads.
    """

    def __init__(
        self, settings: TicketSettings, silenced_until: Callable[[str], float | None] | None = None
    ) -> None:
        self._silenced_until = silenced_until
        self._tickets: dict[str, EscalationTicket] = {}
        self._heap: list[tuple[float, str]] = []
        """Silences aside."""
        self._due: dict[str, float] = {}
        """The valid heap entry of each ticket."""
        self._due_now: set[str] = set()
        """Tickets whose deadline has passed, silences aside, and that have not changed since."""
        self.replace_settings(settings)

    def replace_settings(self, settings: TicketSettings) -> None:
        """Replace the settings, also for tickets that are scheduled."""
        self.hold = settings.hold_seconds
        self._remind_after = settings.re_escalation.after_minutes * 60
        self._remind_most = settings.re_escalation.max
        for ticket in list(self._tickets.values()):
            self.schedule(ticket)

    def schedule(self, ticket: EscalationTicket) -> None:
        """Schedule a new or changed ticket. A closed one is removed."""
        ticket_id = ticket.ticket_id
        self._due_now.discard(ticket_id)
        at = None
        if ticket.is_live:
            self._tickets[ticket_id] = ticket
            at = lifecycle.hold_ends(ticket, self.hold)
            if at is None:
                at = self._unsilenced_reminder(ticket)
        else:
            self._tickets.pop(ticket_id, None)
        if at is None:
            self._due.pop(ticket_id, None)
        elif self._due.get(ticket_id) != at:
            self._due[ticket_id] = at
            heappush(self._heap, (at, ticket_id))

    def next_due_at(self) -> float | None:
        """Return when the next ticket is due, in seconds since the epoch, or None."""
        while self._heap:
            at, ticket_id = self._heap[0]
            if self._due.get(ticket_id) == at and self._due_at(self._tickets[ticket_id]) == at:
                break
            self._take_first()
        deadlines = [self._due_at(self._tickets[ticket_id]) for ticket_id in self._due_now]
        deadlines += [at for at, _ in self._heap[:1]]
        return min((at for at in deadlines if at is not None), default=None)

    def due_ids(self, now: float, exclude: Collection[str] = ()) -> list[str]:
        """Return the ids of the tickets that are due, oldest first. They stay due until they change."""
        while self._heap and self._heap[0][0] <= now:
            self._take_first()
        tickets = [self._tickets[ticket_id] for ticket_id in self._due_now if ticket_id not in exclude]
        due = [ticket for ticket in tickets if (at := self._due_at(ticket)) is not None and at <= now]
        return [t.ticket_id for t in sorted(due, key=lambda t: (t.first_seen, t.ticket_id))]

    def reminder_at(self, ticket: EscalationTicket) -> float | None:
        """Return when people are reminded of a ticket, or None. A silence defers it."""
        at = self._unsilenced_reminder(ticket)
        if at is None or self._silenced_until is None:
            return at
        until = self._silenced_until(ticket.ticket_id)
        return at if until is None else max(at, until)

    def _due_at(self, ticket: EscalationTicket) -> float | None:
        # There are no reminders during the hold.
        ends = lifecycle.hold_ends(ticket, self.hold)
        return self.reminder_at(ticket) if ends is None else ends

    def _unsilenced_reminder(self, ticket: EscalationTicket) -> float | None:
        return lifecycle.remind_at(ticket, after=self._remind_after, most=self._remind_most)

    def _take_first(self) -> None:
        at, ticket_id = heappop(self._heap)
        if self._due.get(ticket_id) == at:
            del self._due[ticket_id]
            self._due_now.add(ticket_id)
