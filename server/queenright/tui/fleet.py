"""The fleet as it is known: lists from the API, and what events have changed since. No widgets here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from queenright.tui.event_lines import WORK, Line, feed_line
from queenright.tui.values import WORST_FIRST, Breaker, Loaded, Moment, Ticket, Worker

BUCKET: Final = 5.0
"""Seconds that one bar of a worker's activity is about."""

_BUCKETS: Final = 60
_FEED: Final = 500
_KNOWN: Final = 5_000

_STALE: Final = {
    "workers": frozenset({*WORK, "health_state_changed", "agent_terminated"}),
    "tickets": frozenset(
        {
            "worker_escalation_ticket",
            "queen_intervention_requested",
            "ticket_triaged",
            "ticket_acknowledged",
            "ticket_unacknowledged",
            "ticket_reescalated",
            "ticket_resolved",
        }
    ),
    "breakers": frozenset({"circuit_breaker_state_changed"}),
    "loaded": frozenset({"agent_operated"}),
}
LISTS: Final = frozenset(_STALE)
"""Names of the lists that are asked for again when an event says that they have changed."""


class Fleet:
    """
    Everybody who is watched.

    Attributes:
        stale: The lists that must be asked for again.
        feed: The newest of what happened, oldest first.
    """

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.tickets: list[Ticket] = []
        self.breakers: list[Breaker] = []
        self.loaded: list[Loaded] = []
        self.feed: deque[Line] = deque(maxlen=_FEED)
        self.stale: set[str] = set(LISTS)
        self._in_trouble: set[tuple[str, str]] = set()
        self._pulse: dict[str, deque[tuple[int, int]]] = {}
        self._known: dict[str, None] = {}

    def take_workers(self, found: Iterable[Worker]) -> None:
        """Take over the list of workers, the worst first."""
        self.workers = list(found)
        self._sort()
        names = {one.agent_id for one in self.workers}
        self._pulse = {name: beats for name, beats in self._pulse.items() if name in names}

    def take_tickets(self, found: Iterable[Ticket]) -> None:
        """Take over the list of tickets, the most severe first."""
        self.tickets = sorted(found, key=lambda one: one.rank)
        self._sort()

    def take_breakers(self, found: Iterable[Breaker]) -> None:
        """Take over the list of circuit breakers, those that are open first."""
        self.breakers = sorted(found, key=lambda one: one.rank)

    def take_loaded(self, found: Iterable[Loaded]) -> None:
        """Take over the list of agents that are loaded."""
        self.loaded = list(found)

    def take_feed(self, lines: Iterable[Line], ids: Iterable[str]) -> None:
        """Take over what happened before, oldest first, with the ids of its events."""
        new = {id_: line for line, id_ in zip(lines, ids, strict=True) if id_ not in self._known}
        room = _FEED - len(self.feed)
        self.feed.extendleft(list(reversed(new.values()))[:room])
        self._known |= dict.fromkeys(new)

    def see(self, event: Moment) -> bool:
        """Take in one event; return whether it is new. One that is told twice changes nothing."""
        if event.id:
            if event.id in self._known:
                return False
            self._known[event.id] = None
            while len(self._known) > _KNOWN:
                del self._known[next(iter(self._known))]
        if (said := feed_line(event)) is not None:
            self.feed.append(said)
        if event.type in WORK:
            self._beat(event)
        if event.type == "health_state_changed":
            self._change_state(event)
        self.stale |= {name for name, types in _STALE.items() if event.type in types}
        return True

    def pulse(self, agent_id: str, now: float, width: int) -> list[int]:
        """Return how much a worker did in each of the last ``width`` spans of ``BUCKET`` seconds."""
        counts = dict(self._pulse.get(agent_id, ()))
        last = int(now // BUCKET)
        return [counts.get(number, 0) for number in range(last - width + 1, last + 1)]

    @property
    def counts(self) -> dict[str, int]:
        """How many of those who are alive are in each state that one can be alive in, the worst first."""
        states = [self.standing(one) for one in self.workers]
        return {state: states.count(state) for state in WORST_FIRST}

    def standing(self, worker: Worker) -> str:
        """
        Return how a worker is to be shown: who has ended, and not well, fails until its ticket is closed.

        Of others who have ended it is their outcome.
        """
        if not worker.ended:
            return worker.state
        return "failing" if (worker.agent_id, worker.session_id) in self._in_trouble else worker.outcome

    def _sort(self) -> None:
        self._in_trouble = {(one.agent_id, one.session_id) for one in self.tickets if one.live}
        self.workers.sort(key=self._rank)

    def _rank(self, worker: Worker) -> tuple[int, bool, str, float]:
        """Return where one stands in the list: who is worst off comes first, and then who is alive."""
        state = self.standing(worker)
        worse = WORST_FIRST.index(state) if state in WORST_FIRST else len(WORST_FIRST)
        return worse, worker.ended, worker.agent_id, -worker.state_since

    @property
    def live_tickets(self) -> list[Ticket]:
        """The tickets that are not over, the most severe first."""
        return [one for one in self.tickets if one.live]

    def worker(self, key: str) -> Worker | None:
        """Return the worker of a line, or of a name: its newest session."""
        for one in self.workers:
            if key in (one.key, one.agent_id):
                return one
        return None

    def ticket(self, ticket_id: str) -> Ticket | None:
        """Return a ticket; None if it is not known."""
        return next((one for one in self.tickets if one.ticket_id == ticket_id), None)

    def ticket_of(self, agent_id: str) -> Ticket | None:
        """Return the worst ticket on a worker: one that is not over, else the newest that is."""
        return next((one for one in self.tickets if one.agent_id == agent_id), None)

    def breaker(self, name: str) -> Breaker | None:
        """Return a breaker; None if it is not known."""
        return next((one for one in self.breakers if one.name == name), None)

    def _beat(self, event: Moment) -> None:
        beats = self._pulse.setdefault(event.agent_id, deque(maxlen=_BUCKETS))
        number = int(event.time // BUCKET)
        if beats and beats[-1][0] == number:
            beats[-1] = (number, beats[-1][1] + 1)
        elif not beats or beats[-1][0] < number:
            beats.append((number, 1))

    def _change_state(self, event: Moment) -> None:
        for place, one in enumerate(self.workers):
            if (one.agent_id, one.session_id) == (event.agent_id, event.session_id):
                self.workers[place] = replace(
                    one,
                    state=str(event.data["to"]),
                    state_since=event.time,
                    reason=str(event.data.get("reason") or ""),
                )
        self._sort()
