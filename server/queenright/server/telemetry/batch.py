"""The result of a request or hook call: events, and counts of records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from queenright.runtime.events import AgentEvent
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.runs import TracedRun
from queenright.server.telemetry.sources import Sources
from queenright.server.telemetry.unusable import UnusableRecordError, UnusedReason
from queenright.server.telemetry.values import number_events

MAX_EVENTS: Final = 1_024
"""Maximum events per transaction. A longer request is stored in several batches."""

_MAX_REASONS: Final = 5


@dataclass(slots=True)
class Batch:
    """Events ordered by time, and the number of accepted, ignored and rejected records."""

    events: list[AgentEvent] = field(default_factory=list)
    renames: list[AgentEvent] = field(default_factory=list)
    """Rename events. They precede all other events, which use the new names."""
    accepted: int = 0
    ignored: int = 0
    rejected: int = 0
    rejected_total: int = 0
    """Records that were rejected before the last `clear`."""
    sources: Sources = field(default_factory=Sources)
    """Statistics of each sender in this batch."""
    reasons: list[str] = field(default_factory=list)
    report_intervals: dict[str, float | None] = field(default_factory=dict)
    """Seconds between reports of open work, by incarnation id; None if the process does not report it."""
    identities: set[bytes] = field(default_factory=set)
    """Identities of the accepted records."""
    _previous_states: list[tuple[TracedRun, bool, int]] = field(default_factory=list)
    _on_undo: list[Callable[[], None]] = field(default_factory=list)

    def reject(self, process: Process, scope: str, error: UnusableRecordError) -> None:
        """Count a rejected record. The response contains the first few reasons."""
        self.rejected += 1
        self.sources.for_process(process, scope).rejected[error.fault] += 1
        self.add_reason(str(error))

    def add_reason(self, reason: str) -> None:
        """Add a reason to the response, up to a limit."""
        if reason not in self.reasons and len(self.reasons) < _MAX_REASONS:
            self.reasons.append(reason)

    def ignore(self, process: Process, scope: str, reason: UnusedReason) -> None:
        """Count a record that is not used."""
        self.ignored += 1
        self.sources.for_process(process, scope).unused[reason] += 1

    def set_open(self, run: TracedRun, is_open: bool, ended_at: int) -> None:
        """Open or close a run, so that `undo` can revert it."""
        self._previous_states.append((run, run.open, run.ended_at))
        run.open, run.ended_at = is_open, ended_at

    def on_undo(self, callback: Callable[[], None]) -> None:
        """Register a callback for `undo`."""
        self._on_undo.append(callback)

    def undo(self) -> None:
        """Revert all state changes, because the events were not stored and the sender may retry."""
        for run, was_open, ended_at in reversed(self._previous_states):
            run.open, run.ended_at = was_open, ended_at
        for callback in reversed(self._on_undo):
            callback()

    def clear(self) -> None:
        """Reset after the events are stored. Reasons for the response are kept."""
        self.rejected_total += self.rejected
        self.accepted = self.ignored = self.rejected = 0
        self.events, self.renames = [], []
        self.sources.clear()
        self.report_intervals.clear()
        self.identities = set()
        self._previous_states = []
        self._on_undo = []

    def finish(self) -> None:
        """Sort the events by time, and assign their ids."""
        self.events.sort(key=attrgetter("time"))
        self.events[:0] = self.renames
        self.renames = []
        number_events(self.events)
