"""What one request holds once it is decoded, and what the receiver remembers between requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from queenright.runtime.events import AgentEvent
from queenright.server.otlp.attribution import Attribution, Run
from queenright.server.otlp.duplicates import Duplicates
from queenright.server.otlp.errors import too_many
from queenright.server.otlp.values import number_events
from queenright.server.otlp.wire import MAX_GROUPS, MAX_ITEMS

MAX_EVENTS: Final = 1_024
"""Events that are handed on at once; of a longer request the rest follows."""

_MAX_REASONS: Final = 5


@dataclass(slots=True)
class Memory:
    """What the receiver remembers between requests, all of it bounded."""

    attribution: Attribution = field(default_factory=Attribution)
    duplicates: Duplicates = field(default_factory=Duplicates)


@dataclass(slots=True)
class Decoded:
    """What one request held: events in the order of their times, and what became of its spans or records."""

    events: list[AgentEvent] = field(default_factory=list)
    accepted: int = 0
    ignored: int = 0
    rejected: int = 0
    all_rejected: int = 0
    """Those rejected before the last `clear`."""
    reasons: list[str] = field(default_factory=list)
    spans: set[bytes] = field(default_factory=set)
    _before: list[tuple[Run, bool, int]] = field(default_factory=list)
    _groups: int = 0
    _items: int = 0

    def reject(self, reason: str) -> None:
        """Count a span or record that cannot be used; the sender is told the first few reasons."""
        self.rejected += 1
        if reason not in self.reasons and len(self.reasons) < _MAX_REASONS:
            self.reasons.append(reason)

    def set_open(self, run: Run, is_open: bool, ended_at: int) -> None:
        """Note that a run has begun or ended, so that it can be taken back."""
        self._before.append((run, run.open, run.ended_at))
        run.open, run.ended_at = is_open, ended_at

    def undo(self) -> None:
        """Take back which runs have begun and ended: the events were not stored, and may come again."""
        for run, was_open, ended_at in reversed(self._before):
            run.open, run.ended_at = was_open, ended_at

    def count_group(self) -> None:
        """
        Count a resource or a scope.

        Raises:
            Refused: There are more than a request may hold (413).
        """
        self._groups += 1
        if self._groups > MAX_GROUPS:
            raise too_many("resources and scopes", MAX_GROUPS)

    def count_items(self, count: int) -> None:
        """
        Count spans or records.

        Raises:
            Refused: There are more than a request may hold (413).
        """
        self._items += count
        if self._items > MAX_ITEMS:
            raise too_many("spans or records", MAX_ITEMS)

    def clear(self) -> None:
        """Begin anew once the events are stored; what the sender is told stays."""
        self.all_rejected += self.rejected
        self.accepted = self.ignored = self.rejected = 0
        self.events = []
        self.spans = set()
        self._before = []

    def finish(self) -> None:
        """Order the events by time and number them."""
        self.events.sort(key=attrgetter("time"))
        number_events(self.events)
