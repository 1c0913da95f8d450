"""Runs with an action that is due later, unless more of the run arrives first."""

from __future__ import annotations

from typing import Final

from queenright.server.telemetry.bounded import make_room
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.runs import TracedRun

MAX_HELD: Final = 10_000


class HeldRuns:
    """Held runs, each with its due time and observation. Not thread-safe."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[float, TracedRun, Observation]] = {}

    def get(self, run: TracedRun) -> Observation | None:
        """Return the observation of a held run, or None."""
        pending = self._pending.get(id(run))
        return None if pending is None else pending[2]

    def hold(self, run: TracedRun, observation: Observation, until: float) -> None:
        """Hold a run until a time; replaces an earlier hold."""
        self.drop(run)
        make_room(self._pending, MAX_HELD)
        self._pending[id(run)] = until, run, observation

    def drop(self, run: TracedRun) -> None:
        """Release a run."""
        self._pending.pop(id(run), None)

    def pop_due(self, now: float) -> list[tuple[TracedRun, Observation]]:
        """Remove and return the runs that are due, each with its observation."""
        due_runs = []
        for until, run, observation in self._pending.values():
            if until > now:
                break
            due_runs.append((run, observation))
        for run, _ in due_runs:
            self.drop(run)
        return due_runs
