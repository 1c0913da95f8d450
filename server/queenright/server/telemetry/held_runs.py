"""Runs with an action that is due later, unless more of the run arrives first."""

from __future__ import annotations

from typing import Final

from queenright.server.telemetry.bounded import make_room
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.runs import Run

MAX_HELD: Final = 10_000


class HeldRuns:
    """Held runs, each with its due time and observation. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[float, Run, Observation]] = {}

    def get(self, run: Run) -> Observation | None:
        """Return the observation of a held run, or None."""
        held = self._held.get(id(run))
        return None if held is None else held[2]

    def hold(self, run: Run, observation: Observation, until: float) -> None:
        """Hold a run until a time; replaces an earlier hold."""
        self.drop(run)
        make_room(self._held, MAX_HELD)
        self._held[id(run)] = until, run, observation

    def drop(self, run: Run) -> None:
        """Release a run."""
        self._held.pop(id(run), None)

    def pop_due(self, now: float) -> list[tuple[Run, Observation]]:
        """Remove and return the runs that are due, each with its observation."""
        due = []
        for until, run, observation in self._held.values():
            if until > now:
                break
            due.append((run, observation))
        for run, _ in due:
            self.drop(run)
        return due
