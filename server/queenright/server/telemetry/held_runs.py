"""What is held of runs: it comes true later, unless more of the run arrives that says otherwise."""

from __future__ import annotations

from typing import Final

from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.runs import Run

MAX_HELD: Final = 10_000


class HeldRuns:
    """Runs, each with when it is due and the observation that it is held for. For one thread."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[float, Run, Observation]] = {}

    def get(self, run: Run) -> Observation | None:
        """Return what a run is held for, if it is."""
        held = self._held.get(id(run))
        return None if held is None else held[2]

    def hold(self, run: Run, observation: Observation, until: float) -> None:
        """Hold a run, in place of what it was held for before."""
        self.drop(run)
        while len(self._held) >= MAX_HELD:
            del self._held[next(iter(self._held))]
        self._held[id(run)] = until, run, observation

    def drop(self, run: Run) -> None:
        """Hold a run no longer."""
        self._held.pop(id(run), None)

    def pop_due(self, now: float) -> list[tuple[Run, Observation]]:
        """Return the runs that are due, each with what it was held for, and hold them no longer."""
        found = []
        for until, run, observation in self._held.values():
            if until > now:
                break
            found.append((run, observation))
        for run, _ in found:
            self.drop(run)
        return found
