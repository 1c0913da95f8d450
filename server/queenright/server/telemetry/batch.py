"""What the records of one request or hook call became: events, and what was not used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from queenright.runtime.events import AgentEvent
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.runs import Run
from queenright.server.telemetry.sources import Sources
from queenright.server.telemetry.unusable import UnusableRecordError, Unused
from queenright.server.telemetry.values import number_events

MAX_EVENTS: Final = 1_024
"""Events that are handed on at once; of a longer request the rest follows."""

_MAX_REASONS: Final = 5


@dataclass(slots=True)
class Batch:
    """Events in the order of their times, and how many records were accepted, ignored and rejected."""

    events: list[AgentEvent] = field(default_factory=list)
    renames: list[AgentEvent] = field(default_factory=list)
    """Events that come before the others: all of these are of an agent under its new name."""
    accepted: int = 0
    ignored: int = 0
    rejected: int = 0
    rejected_total: int = 0
    """Those rejected before the last `clear`."""
    sources: Sources = field(default_factory=Sources)
    """What each of the senders has sent, and what was not used of it."""
    reasons: list[str] = field(default_factory=list)
    report_intervals: dict[str, float | None] = field(default_factory=dict)
    """The processes that it is of, and in how many seconds each says again what is open, if it does."""
    identities: set[bytes] = field(default_factory=set)
    """Of the records that were accepted."""
    _before: list[tuple[Run, bool, int]] = field(default_factory=list)
    _on_undo: list[Callable[[], None]] = field(default_factory=list)

    def reject(self, process: Process, scope: str, error: UnusableRecordError) -> None:
        """Count a record that cannot be used; the sender is told the first few reasons."""
        self.rejected += 1
        self.sources.for_process(process, scope).rejected[error.fault] += 1
        self.add_reason(str(error))

    def add_reason(self, reason: str) -> None:
        """Have the sender told a reason, unless there are enough."""
        if reason not in self.reasons and len(self.reasons) < _MAX_REASONS:
            self.reasons.append(reason)

    def ignore(self, process: Process, scope: str, reason: Unused) -> None:
        """Count a record that is not used."""
        self.ignored += 1
        self.sources.for_process(process, scope).unused[reason] += 1

    def set_open(self, run: Run, is_open: bool, ended_at: int) -> None:
        """Note that a run has begun or ended, so that it can be taken back."""
        self._before.append((run, run.open, run.ended_at))
        run.open, run.ended_at = is_open, ended_at

    def on_undo(self, forget: Callable[[], None]) -> None:
        """Have this called if the events are not stored."""
        self._on_undo.append(forget)

    def undo(self) -> None:
        """Take back which runs have begun and ended: the events were not stored, and may come again."""
        for run, was_open, ended_at in reversed(self._before):
            run.open, run.ended_at = was_open, ended_at
        for forget in reversed(self._on_undo):
            forget()

    def clear(self) -> None:
        """Begin anew once the events are stored; what the sender is told stays."""
        self.rejected_total += self.rejected
        self.accepted = self.ignored = self.rejected = 0
        self.events, self.renames = [], []
        self.sources.clear()
        self.report_intervals.clear()
        self.identities = set()
        self._before = []
        self._on_undo = []

    def finish(self) -> None:
        """Order the events by time and number them."""
        self.events.sort(key=attrgetter("time"))
        self.events[:0] = self.renames
        self.renames = []
        number_events(self.events)
