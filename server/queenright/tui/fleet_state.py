"""State of the fleet, without widgets: lists from the API, updated by events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from queenright.api.agent_slot import AgentSlot
from queenright.api.agents import AgentRow
from queenright.api.attention import AttentionItem, AttentionList
from queenright.api.breakers import Breaker
from queenright.api.events import Event
from queenright.api.terms import WORST_FIRST, Severity, list_values
from queenright.api.tickets import Ticket
from queenright.tui.event_lines import TICKET_TYPES, WORK_TYPES, EventLine, make_event_line
from queenright.tui.models import is_open, make_worker_key
from queenright.tui.worker_filter import WorkerFilter

BUCKET_SECONDS: Final = 5.0
"""Seconds per bar of a worker's activity."""

_MAX_BUCKETS: Final = 60
_FEED_SIZE: Final = 500
_MAX_EVENT_IDS: Final = 5_000
_SEVERITIES: Final = list_values(Severity)
_BREAKER_STATES: Final = ("open", "half_open", "closed")

_TICKET_EVENTS: Final = frozenset(TICKET_TYPES)
_EVENTS_BY_LIST: Final = {
    "attention": _TICKET_EVENTS
    | {
        "agent_renamed",
        "agent_terminated",
        "client_input_received",
        "client_input_requested",
        "escalation_decided",
        "escalation_triggered",
        "execution_completed",
        "execution_failed",
        "execution_paused",
        "execution_resumed",
        "execution_started",
        "health_state_changed",
        "intervention_recorded",
        "recovery_failed",
        "termination_decided",
        "termination_requested",
        "worker_waiting",
    },
    "workers": frozenset({*WORK_TYPES, "health_state_changed", "agent_terminated"}),
    "tickets": _TICKET_EVENTS,
    "breakers": frozenset({"breaker_reported", "circuit_breaker_state_changed"}),
    "loaded": frozenset({"agent_operated"}),
}
LISTS: Final = frozenset(_EVENTS_BY_LIST)
"""Names of the lists that are requested again after an event that changes them."""


class FleetState:
    """
    The monitored fleet.

    Attributes:
        stale: The lists that must be requested again.
        feed: The newest events, oldest first.
    """

    def __init__(self) -> None:
        self.attention_items: list[AttentionItem] = []
        self.attention_total = 0
        self.filter = WorkerFilter()
        self.workers: list[AgentRow] = []
        self.tickets: list[Ticket] = []
        self.breakers: list[Breaker] = []
        self.loaded_agents: list[AgentSlot] = []
        self.feed: deque[EventLine] = deque(maxlen=_FEED_SIZE)
        self.stale: set[str] = set(LISTS)
        self._urgent_sessions: set[tuple[str, str]] = set()
        self._activity: dict[str, deque[tuple[int, int]]] = {}
        self._event_ids: dict[str, None] = {}

    def set_attention(self, attention: AttentionList) -> None:
        """Replace the items that need a person."""
        self.attention_items, self.attention_total = attention.items, attention.total

    def set_workers(self, rows: Iterable[AgentRow]) -> None:
        """Replace the workers, worst first."""
        self.workers = list(rows)
        self._sort()
        names = {worker.agent_id for worker in self.workers}
        self._activity = {name: counts for name, counts in self._activity.items() if name in names}

    def set_tickets(self, rows: Iterable[Ticket]) -> None:
        """Replace the tickets, most severe first."""
        self.tickets = sorted(rows, key=_get_ticket_sort_key)
        self._sort()

    def set_breakers(self, rows: Iterable[Breaker]) -> None:
        """Replace the circuit breakers, open ones first."""
        self.breakers = sorted(rows, key=lambda breaker: (_BREAKER_STATES.index(breaker.state), breaker.name))

    def set_loaded(self, rows: Iterable[AgentSlot]) -> None:
        """Replace the loaded agents."""
        self.loaded_agents = list(rows)

    def prepend_feed(self, lines: Iterable[EventLine], ids: Iterable[str]) -> None:
        """Insert earlier events into the feed, oldest first, with their ids."""
        new_lines = {id_: line for line, id_ in zip(lines, ids, strict=True) if id_ not in self._event_ids}
        room = _FEED_SIZE - len(self.feed)
        self.feed.extendleft(list(reversed(new_lines.values()))[:room])
        self._event_ids |= dict.fromkeys(new_lines)

    def handle_event(self, event: Event) -> bool:
        """Apply an event; return whether it is new. Duplicates change nothing."""
        if event.id:
            if event.id in self._event_ids:
                return False
            self._event_ids[event.id] = None
            while len(self._event_ids) > _MAX_EVENT_IDS:
                del self._event_ids[next(iter(self._event_ids))]
        if (line := make_event_line(event)) is not None:
            self.feed.append(line)
        if event.type in WORK_TYPES:
            self._count_activity(event)
        if event.type == "health_state_changed":
            self._change_state(event)
        self.stale |= {name for name, types in _EVENTS_BY_LIST.items() if event.type in types}
        return True

    def activity(self, agent_id: str, now: float, width: int) -> list[int]:
        """Return the number of events of a worker in each of the last ``width`` buckets."""
        counts = dict(self._activity.get(agent_id, ()))
        last = int(now // BUCKET_SECONDS)
        return [counts.get(number, 0) for number in range(last - width + 1, last + 1)]

    @property
    def counts(self) -> dict[str, int]:
        """Number of workers in each health state, worst first."""
        states = [self.attention(worker) for worker in self.workers]
        return {state: states.count(state) for state in WORST_FIRST}

    def attention(self, worker: AgentRow) -> str:
        """
        Return how much attention a worker needs: its health, or the outcome of an ended session.

        An ended session with an open ticket needs as much as a failing one.
        """
        if not worker.ended:
            return worker.state
        return "failing" if (worker.agent_id, worker.session_id) in self._urgent_sessions else worker.outcome

    def _sort(self) -> None:
        self._urgent_sessions = {
            (ticket.agent_id, ticket.session_id) for ticket in self.tickets if is_open(ticket)
        }
        self.workers.sort(key=self._get_sort_key)

    def _get_sort_key(self, worker: AgentRow) -> tuple[int, bool, str, float]:
        """Return the sort key: worst state first, then active before ended sessions."""
        state = self.attention(worker)
        rank = WORST_FIRST.index(state) if state in WORST_FIRST else len(WORST_FIRST)
        return rank, worker.ended, worker.agent_id, -worker.state_since

    @property
    def open_tickets(self) -> list[Ticket]:
        """The open tickets, most severe first."""
        return [ticket for ticket in self.tickets if is_open(ticket)]

    @property
    def filtered_workers(self) -> list[AgentRow]:
        """The workers that match the filter, worst first."""
        return [worker for worker in self.workers if self.filter.matches(worker)]

    def attention_item(self, item_id: str) -> AttentionItem | None:
        """Return an item that needs a person, or None."""
        return next((item for item in self.attention_items if item.item_id == item_id), None)

    def worker(self, key: str) -> AgentRow | None:
        """Return the worker with a row key or a name; for a name, its newest session."""
        for worker in self.workers:
            if key in (make_worker_key(worker), worker.agent_id):
                return worker
        return None

    def ticket(self, ticket_id: str) -> Ticket | None:
        """Return a ticket, or None."""
        return next((ticket for ticket in self.tickets if ticket.ticket_id == ticket_id), None)

    def worst_ticket_of(self, agent_id: str) -> Ticket | None:
        """Return the worst open ticket of a worker, otherwise its newest closed one."""
        return next((ticket for ticket in self.tickets if ticket.agent_id == agent_id), None)

    def breaker(self, name: str) -> Breaker | None:
        """Return a circuit breaker, or None."""
        return next((breaker for breaker in self.breakers if breaker.name == name), None)

    def _count_activity(self, event: Event) -> None:
        counts = self._activity.setdefault(event.agent_id, deque(maxlen=_MAX_BUCKETS))
        number = int(event.time // BUCKET_SECONDS)
        if counts and counts[-1][0] == number:
            counts[-1] = (number, counts[-1][1] + 1)
        elif not counts or counts[-1][0] < number:
            counts.append((number, 1))

    def _change_state(self, event: Event) -> None:
        for index, worker in enumerate(self.workers):
            if (worker.agent_id, worker.session_id) == (event.agent_id, event.session_id):
                changes = {
                    "state": str(event.data["to"]),
                    "state_since": event.time,
                    "reason": str(event.data.get("reason") or ""),
                }
                self.workers[index] = worker.model_copy(update=changes)
        self._sort()


def _get_ticket_sort_key(ticket: Ticket) -> tuple[bool, int, float]:
    """Return the sort key: open and most severe first, then newest."""
    if not is_open(ticket):
        return True, 0, -ticket.first_seen
    severity = _SEVERITIES.index(ticket.severity) if ticket.severity in _SEVERITIES else 0
    return False, -severity, -ticket.first_seen
