"""Hold runs for an action that is due later, and ends of spans that may be lost."""

from __future__ import annotations

from functools import partial
from typing import Final

from queenright.server.telemetry.batch import Batch
from queenright.server.telemetry.bounded_dict import make_room
from queenright.server.telemetry.duplicates import Duplicates
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.runs import TracedRun

MAX_HELD_RUNS: Final = 10_000

SPAN_GRACE_SECONDS: Final = 60.0
"""Seconds to wait for a span after the record of its end. Exporters send every 5 s and retry."""


class LostSpans:
    """Reported ends that wait for their spans, which have more data but may be lost. Not thread-safe."""

    def __init__(self) -> None:
        self._pending: dict[bytes, tuple[float, Observation]] = {}

    def hold(self, observation: Observation, now: float) -> None:
        """Keep the end of a span until the span is overdue."""
        make_room(self._pending, MAX_HELD_RUNS)
        self._pending.setdefault(observation.identity, (now + SPAN_GRACE_SECONDS, observation))

    def pop_due(self, now: float, duplicates: Duplicates, batch: Batch) -> list[Observation]:
        """
        Remove and return the ends whose spans have not arrived in time.

        Raises:
            StillStoringError: One of the spans is being stored.
        """
        due_ids = []
        for identity, (due_at, _) in self._pending.items():
            if due_at > now:
                break
            due_ids.append((identity, duplicates.is_stored(identity)))
        overdue: list[Observation] = []
        for identity, has_span in due_ids:
            _, observation = self._pending.pop(identity)
            if not has_span:
                observation.awaits_span = False
                overdue.append(observation)
                batch.on_undo(partial(self.hold, observation, now - SPAN_GRACE_SECONDS))
        return overdue


class HeldRuns:
    """Held runs, each with its due time and observation. Not thread-safe."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[float, TracedRun, Observation]] = {}

    def get(self, run: TracedRun) -> Observation | None:
        """Return the observation of a held run, or None."""
        pending = self._pending.get(id(run))
        return None if pending is None else pending[2]

    def hold(self, run: TracedRun, observation: Observation, until: float) -> None:
        """Hold a run until a time. This replaces an earlier hold."""
        self.drop(run)
        make_room(self._pending, MAX_HELD_RUNS)
        self._pending[id(run)] = until, run, observation

    def drop(self, run: TracedRun) -> None:
        """Release a run."""
        self._pending.pop(id(run), None)

    def pop_due(self, now: float) -> list[tuple[TracedRun, Observation]]:
        """Remove and return the runs that are due, each with its observation."""
        due_runs = []
        for due_at, run, observation in self._pending.values():
            if due_at > now:
                break
            due_runs.append((run, observation))
        for run, _ in due_runs:
            self.drop(run)
        return due_runs
