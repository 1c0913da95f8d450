"""
The thresholds of the detectors: the reason for each default, and its range within which all aims are met.

A reason describes agents' work in general, not these runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

from queenright.health.settings import HealthSettings
from queenright.judge.evaluation import events_of
from tests.detection.aims import AIMS, list_missed_aims
from tests.detection.measure import GROUPS, measure_detectors
from tests.detection.oracle import name_group
from tests.detection.peers import Detector, Verdicts, replay_verdicts
from tests.detection.table import format_table


class Threshold(NamedTuple):
    """
    A setting in ``health_monitoring``, by its path.

    ``tried_values`` lists the values to try, in ascending order. It is empty if the recorded runs do not
    depend on the setting, because they have no verdicts, heartbeats, checkpoints or timeouts.
    """

    path: str
    reason: str
    tried_values: tuple[float, ...] = ()


_SMALL_COUNTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 50)

THRESHOLDS: Final = (
    Threshold(
        "loops.consecutive",
        "two equal calls are common in solved runs; a third shows that the second result was ignored",
        _SMALL_COUNTS,
    ),
    Threshold(
        "loops.repeats",
        "scattered repeats are weaker evidence than consecutive ones, so one more is required",
        _SMALL_COUNTS,
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


def get_default(threshold: Threshold) -> Any:
    """Return the default of a threshold."""
    return reduce(getattr, threshold.path.split("."), HealthSettings())


def replace_threshold(threshold: Threshold, value: float) -> HealthSettings:
    """Return the default settings with another value of one threshold."""
    block, name = threshold.path.split(".")
    fields = HealthSettings().model_dump()
    fields[block][name] = value
    return HealthSettings.model_validate(fields)


class AimedRuns:
    """The runs in the groups of aims, with their events, which are replayed for many values."""

    def __init__(self, runs: Sequence[Mapping[str, Any]]) -> None:
        aimed_groups = {member for aim in AIMS for member in GROUPS[aim.group]}
        self._runs = [run for run in runs if name_group(run) in aimed_groups]
        self._events = {id(run): events_of(run) for run in self._runs}

    def list_missed_aims(self, settings: HealthSettings) -> list[str]:
        """Return a description of each aim that is not met with these settings."""

        def watch(run: Mapping[str, Any]) -> Verdicts:
            return replay_verdicts(self._events[id(run)], settings)

        [measurement] = measure_detectors(self._runs, [Detector("ours", watch)])
        return list_missed_aims(measurement)


class Reach(NamedTuple):
    """
    The lowest and highest tried values with which every aim is met, and the aims that are missed beyond.
    """

    low: float
    high: float
    below: str
    above: str


def measure_reach(threshold: Threshold, runs: AimedRuns) -> Reach:
    """Try lower and higher values of a threshold until an aim is missed or no value is left."""
    start = get_default(threshold)
    low, below = _walk(
        threshold, sorted((v for v in threshold.tried_values if v < start), reverse=True), start, runs
    )
    high, above = _walk(threshold, sorted(v for v in threshold.tried_values if v > start), start, runs)
    return Reach(low, high, below, above)


def _walk(threshold: Threshold, values: Sequence[float], start: float, runs: AimedRuns) -> tuple[float, str]:
    last = start
    for value in values:
        missed_aims = runs.list_missed_aims(replace_threshold(threshold, value))
        if missed_aims:
            return last, f"{value:g}: {missed_aims[0]}"
        last = value
    return last, ""


def format_threshold_table(runs: AimedRuns) -> str:
    """Return a table of all thresholds."""
    rows = [["setting", "default", "reason", "every aim is met from"]]
    rows += [
        format_threshold_row(threshold, measure_reach(threshold, runs) if threshold.tried_values else None)
        for threshold in THRESHOLDS
    ]
    return format_table(rows)


def format_threshold_row(threshold: Threshold, reach: Reach | None) -> list[str]:
    """Return the table cells of a threshold."""
    cells = [f"`{threshold.path}`", f"{get_default(threshold):g}", threshold.reason]
    if reach is None:
        return [*cells, "\N{EN DASH}"]
    low = f"{reach.low:g}" if reach.below else f"\N{LESS-THAN OR EQUAL TO}{reach.low:g}"
    high = f"{reach.high:g}" if reach.above else f"\N{GREATER-THAN OR EQUAL TO}{reach.high:g}"
    return [*cells, f"{low} to {high}"]
