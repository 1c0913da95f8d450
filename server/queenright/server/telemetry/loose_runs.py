"""Group calls that each have their own trace. Consecutive calls of a process form a run."""

from __future__ import annotations

from typing import Final

from queenright.server.telemetry.bounded_dict import make_room
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.runs import EndedCall, TracedRun

MAX_PROCESSES: Final = 10_000
MAX_RUNS: Final = 64
"""Maximum runs per process; the newest are kept."""
MAX_GAP: Final = 60 * 10**9
"""Maximum nanoseconds between two calls of one run."""


class LooseRuns:
    """
    Runs of libraries that start a trace for each call. The oldest runs are dropped first.

    A run makes one call at a time, so overlapping calls belong to different runs, unless two libraries report
    the same call.
    """

    def __init__(self) -> None:
        self._runs: dict[str, list[TracedRun]] = {}

    def find(self, observation: Observation, call: EndedCall) -> TracedRun | None:
        """Return the run of a call's session, otherwise the run with the nearest call, otherwise None."""
        nearest: tuple[int, TracedRun] | None = None
        for run in reversed(self._runs.get(observation.process.incarnation_id, ())):
            if observation.session and run.has_own_session:
                if observation.session == run.session_id:
                    return run
                continue
            gap = _compute_gap(run, observation, call)
            if gap is not None and gap <= MAX_GAP and (nearest is None or gap < nearest[0]):
                nearest = gap, run
        return None if nearest is None else nearest[1]

    def add(self, run: TracedRun) -> None:
        """Add a new run."""
        runs = self._runs.pop(run.incarnation_id, [])
        make_room(self._runs, MAX_PROCESSES)
        self._runs[run.incarnation_id] = [*runs[1 - MAX_RUNS :], run]


def _compute_gap(run: TracedRun, observation: Observation, call: EndedCall) -> int | None:
    """Return the nanoseconds between a call and the nearest call of a run; None if they overlap."""
    gaps = []
    for work in run.open_work.values():
        if not work.end and work.library == observation.library:
            return None
        gaps.append(max(0, call.start - work.end) if work.end else 0)
    for ended_call in run.ended_calls or ():
        if observation.library not in ended_call.libraries and ended_call.is_same(call):
            return 0
        gap = max(ended_call.start, call.start) - min(ended_call.end, call.end)
        if gap < 0:
            return None
        gaps.append(gap)
    return min(gaps, default=None)
