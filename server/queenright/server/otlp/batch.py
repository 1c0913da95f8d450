"""What one request holds once it is decoded, and what the receiver remembers between requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from queenright.runtime.events import AgentEvent
from queenright.server.otlp.attribution import Attribution, Run
from queenright.server.otlp.duplicates import Duplicates
from queenright.server.otlp.values import number_events

CHUNK: Final = 256
"""Spans decoded between two breaths of the event loop."""

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
    reasons: list[str] = field(default_factory=list)
    spans: set[bytes] = field(default_factory=set)
    _before: list[tuple[Run, bool, int]] = field(default_factory=list)

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

    def finish(self) -> None:
        """Order the events by time and number them."""
        self.events.sort(key=attrgetter("time"))
        number_events(self.events)
