"""
Every threshold of the detectors: why it is what it is, and how far it can move before an aim is missed.

A reason is about work, not about these runs; where one is thin, the reach beside it shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

from queenright.health.settings import HealthSettings
from queenright.judge.evaluation import events_of
from tests.detection.aims import AIMS, missed
from tests.detection.measure import GROUPS, measure
from tests.detection.oracle import group_of
from tests.detection.peers import Detector, Verdicts, verdicts_of
from tests.detection.table import table


class Threshold(NamedTuple):
    """
    A setting of ``health_monitoring``, by its path.

    ``tried`` are the values it is moved to, from the least to the greatest; none where the
    recorded runs cannot touch it, as they have no verdicts, heartbeats, checkpoints or time-outs.
    """

    path: str
    reason: str
    tried: tuple[float, ...] = ()


_FEW: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 50)

THRESHOLDS: Final = (
    Threshold(
        "loops.consecutive",
        "two equal calls are common in solved runs; a third shows that the second result was ignored",
        _FEW,
    ),
    Threshold(
        "loops.repeats",
        "scattered repeats are weaker evidence than consecutive ones, so one more is required",
        _FEW,
    ),
    Threshold(
        "loops.idle_turns",
        "finishing a task takes one or two answers and a question one; eight in a row achieve nothing",
        (2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 50),
    ),
    Threshold(
        "stall.unknown_seconds",
        "an unknown phase may be a slow call or a wait for a person: longer than `stall.tool_seconds`",
        (60, 120, 180, 240, 300, 420, 600, 900, 1_200, 1_800, 3_600),
    ),
    Threshold(
        "stall.idle_seconds",
        "nothing runs between two steps; twice `judge.interval_seconds`",
    ),
    Threshold(
        "stall.llm_seconds",
        "longer than a pause in a slow stream; the same as `stall.idle_seconds`, to keep one number",
    ),
    Threshold("stall.tool_seconds", "tests and builds take minutes; a slower tool declares its timeout"),
    Threshold(
        "health_check.no_tool_call_seconds",
        "longer than `stall.tool_seconds`: the agent is active, so it gets more time",
        (60, 120, 300, 600, 900, 1_800, 3_600),
    ),
    Threshold(
        "health_check.checkpoint_stale_threshold_seconds",
        "losing half an hour of work justifies a ticket",
    ),
    Threshold("heartbeat.interval_seconds", "negligible cost; workers may declare another interval"),
    Threshold("heartbeat.timeout_seconds", "two intervals: one beat may be lost"),
    Threshold("bands.warning", "spec: five bad steps are shown and page nobody"),
    Threshold("bands.medium", "spec: twice the warning, and only if half of them brought nothing new"),
    Threshold(
        "bands.high",
        "spec: three times the warning; also for consecutive failed calls",
        (11, 12, 13, 15, 17, 19),
    ),
    Threshold(
        "bands.critical",
        "spec: four times the warning; also for the most serious repeats",
        (16, 18, 20, 25, 30, 50),
    ),
    Threshold(
        "health_check.consecutive_failures",
        "steps, not calls, that ended in an error: one more than clients retry",
    ),
)


def default(threshold: Threshold) -> Any:
    """Return the default of a threshold."""
    return reduce(getattr, threshold.path.split("."), HealthSettings())


def moved(threshold: Threshold, value: float) -> HealthSettings:
    """Return the default settings with one threshold moved."""
    block, name = threshold.path.split(".")
    result = HealthSettings().model_dump()
    result[block][name] = value
    return HealthSettings.model_validate(result)


class Aimed:
    """The runs that an aim is about, made ready once, as each is replayed for many values."""

    def __init__(self, runs: Sequence[Mapping[str, Any]]) -> None:
        aimed = {member for aim in AIMS for member in GROUPS[aim.group]}
        self._runs = [run for run in runs if group_of(run) in aimed]
        self._events = {id(run): events_of(run) for run in self._runs}

    def missed(self, settings: HealthSettings) -> list[str]:
        """Return a sentence for each aim that is unmet with these settings."""

        def watch(run: Mapping[str, Any]) -> Verdicts:
            return verdicts_of(self._events[id(run)], settings)

        [measured] = measure(self._runs, [Detector("ours", watch)])
        return missed(measured)


class Reach(NamedTuple):
    """How far a threshold can be moved: the last values with every aim met, and what is missed beyond."""

    low: float
    high: float
    below: str
    above: str


def reach(threshold: Threshold, runs: Aimed) -> Reach:
    """Move a threshold down and up from its default until an aim is missed or nothing is left to try."""
    start = default(threshold)
    low, below = _walk(
        threshold, sorted((v for v in threshold.tried if v < start), reverse=True), start, runs
    )
    high, above = _walk(threshold, sorted(v for v in threshold.tried if v > start), start, runs)
    return Reach(low, high, below, above)


def _walk(threshold: Threshold, values: Sequence[float], start: float, runs: Aimed) -> tuple[float, str]:
    last = start
    for value in values:
        words = runs.missed(moved(threshold, value))
        if words:
            return last, f"{value:g}: {words[0]}"
        last = value
    return last, ""


def thresholds(runs: Aimed) -> str:
    """Return the table of all thresholds."""
    rows = [["setting", "default", "reason", "every aim is met from"]]
    rows += [threshold_row(one, reach(one, runs) if one.tried else None) for one in THRESHOLDS]
    return table(rows)


def threshold_row(threshold: Threshold, found: Reach | None) -> list[str]:
    """Return how a threshold is shown, cell by cell."""
    cells = [f"`{threshold.path}`", f"{default(threshold):g}", threshold.reason]
    if found is None:
        return [*cells, "\N{EN DASH}"]
    low = f"{found.low:g}" if found.below else f"\N{LESS-THAN OR EQUAL TO}{found.low:g}"
    high = f"{found.high:g}" if found.above else f"\N{GREATER-THAN OR EQUAL TO}{found.high:g}"
    return [*cells, f"{low} to {high}"]
