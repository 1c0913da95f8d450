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
        "twice happens to everybody; a third time, nothing was learnt from the second",
        _FEW,
    ),
    Threshold(
        "loops.cycles", "as in a row: a round is one repeat, and the third adds nothing to the second", _FEW
    ),
    Threshold(
        "loops.repeats",
        "scattered repeats are weaker evidence than repeats in a row, so one more is asked for",
        _FEW,
    ),
    Threshold(
        "loops.repeats_high",
        "one more than is looked at: whoever has asked four times and asks again does not wait for a change",
        _FEW,
    ),
    Threshold(
        "loops.repeats_at_all",
        "nearly every other call, twice as often as without a change: it may be a check, so it pages nobody",
        _FEW,
    ),
    Threshold(
        "loops.window",
        "a few times the longest cycle times its rounds (4 times 3), so that others may stand between",
        (5, 8, 10, 12, 15, 20, 30, 40, 60, 100),
    ),
    Threshold(
        "loops.blind_repeats",
        "without results an edit-test cycle looks like a loop: only what nobody does on purpose counts",
        (2, 3, 4, 5, 6, 8, 10, 15, 20, 50),
    ),
    Threshold(
        "loops.error_streak",
        "a failing tool is tried in a few ways, and that is work; as many as bad steps before they are shown",
        _FEW,
    ),
    Threshold(
        "loops.stale_calls",
        "one more than equal calls in a row: here the calls differ, so each says less",
        _FEW,
    ),
    Threshold(
        "loops.fruitless_calls",
        "one more than calls that tell nothing new: shown only, for nothing may be what was hoped for",
        _FEW,
    ),
    Threshold(
        "loops.refused_changes",
        "as many as of any failing tool: what was read between did not help",
        _FEW,
    ),
    Threshold(
        "loops.idle_turns",
        "an answer or two ends a piece of work, a question takes one: eight in a row lead nowhere",
        (2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 50),
    ),
    Threshold(
        "loops.minimum_results",
        "of fewer results a share says little: one call more or less would make it a majority",
        _FEW,
    ),
    Threshold(
        "loops.known_results_share",
        "above a half: acknowledgements and new errors count a half, and must not do it alone",
        (0.51, 0.52, 0.55, 0.58, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0),
    ),
    Threshold(
        "loops.known_results",
        "one more than in a row, as the others may have told something; of nine results it is a majority",
        _FEW,
    ),
    Threshold(
        "loops.provider_failures",
        "clients retry twice by themselves, so three failures are not a hiccup",
        _FEW,
    ),
    Threshold(
        "loops.token_spike_factor",
        "conversations grow by parts of themselves: at four times the usual it is another one",
        (1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 20),
    ),
    Threshold(
        "loops.token_spike_minimum",
        "a multiple of little is little: a file read into a short prompt is under this",
        (1, 1_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000),
    ),
    Threshold(
        "loops.poll_seconds",
        "a read that a person would repeat: seconds are a loop's pace, a quarter of a minute is not",
        (1, 2, 5, 10, 15, 20, 30, 45, 60, 120, 600),
    ),
    Threshold(
        "loops.pause_seconds",
        "longer than a model takes to answer, as nothing tells what is asked for",
        (5, 10, 15, 20, 30, 45, 60, 90, 120, 300, 600),
    ),
    Threshold(
        "loops.polls",
        "as many equal calls as are critical: each was waited for a little, so it is a ticket and no page",
        (2, 5, 10, 15, 20, 30, 50),
    ),
    Threshold(
        "stall.unknown_seconds",
        "who does not say what it does may be in a slow call, or wait for a person: longer than a tool gets",
        (60, 120, 180, 240, 300, 420, 600, 900, 1_200, 1_800, 3_600),
    ),
    Threshold(
        "stall.idle_seconds",
        "between two steps nothing is waited for: four minutes are the judge's two looks",
    ),
    Threshold(
        "stall.llm_seconds",
        "longer than a slow answer streams; as between steps, so that one number is learnt",
    ),
    Threshold("stall.tool_seconds", "tests and builds of minutes are work; who needs longer declares it"),
    Threshold(
        "health_check.no_tool_call_seconds",
        "longer than any stall: it goes on, so it is given more",
        (60, 120, 300, 600, 900, 1_800, 3_600),
    ),
    Threshold(
        "health_check.no_tokens_seconds",
        "as without tool calls: it is the same silence, seen elsewhere",
        (60, 120, 300, 600, 900, 1_800),
    ),
    Threshold(
        "health_check.polling_seconds",
        "twice as long as without tool calls: it waits for something, and says so",
        (300, 900, 1_800, 3_600),
    ),
    Threshold(
        "health_check.checkpoint_stale_threshold_seconds",
        "the loss of half an hour's work is worth a question",
    ),
    Threshold("heartbeat.interval_seconds", "five minutes cost nothing to send; workers may say another"),
    Threshold("heartbeat.timeout_seconds", "two intervals: one beat may be lost"),
    Threshold("bands.warning", "spec: five bad steps are shown and woken for by nobody"),
    Threshold("bands.medium", "spec: twice the warning, and only if half of them brought nothing new"),
    Threshold(
        "bands.high",
        "spec: three times the warning; as many calls in a row that only failed, too",
        (11, 12, 13, 15, 17, 19),
    ),
    Threshold(
        "bands.critical",
        "spec: four times the warning; the most serious repeats begin here too",
        (16, 18, 20, 25, 30, 50),
    ),
    Threshold(
        "health_check.error_rate", "one failure in four is more than trying out; shown only, never an alarm"
    ),
    Threshold(
        "health_check.consecutive_failures",
        "steps, not calls, that failed outright: one more than clients retry",
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

        [measured] = measure(self._runs, [Detector("ours", "", watch)])
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
    rows = [
        [
            "setting",
            "default",
            "reason",
            "every aim is met from",
            "the aim missed first beyond",
        ]
    ]
    rows += [threshold_row(one, reach(one, runs) if one.tried else None) for one in THRESHOLDS]
    return table(rows)


def threshold_row(threshold: Threshold, found: Reach | None) -> list[str]:
    """Return how a threshold is shown, cell by cell."""
    cells = [f"`{threshold.path}`", f"{default(threshold):g}", threshold.reason]
    if found is None:
        return [*cells, "not touched by these runs", "none"]
    low = f"{found.low:g}" if found.below else f"{found.low:g} (the least tried)"
    high = f"{found.high:g}" if found.above else f"{found.high:g} (the most tried)"
    missed_first = "; ".join(words for words in (found.below, found.above) if words)
    return [*cells, f"{low} to {high}", missed_first or "none"]
