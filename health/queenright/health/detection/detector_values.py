"""The current count of each detector, and the threshold from which it fires."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from queenright.health.detection.deadlines import detector_clocks
from queenright.health.detection.detectors import failed_calls_limit, hasty_polls
from queenright.health.findings import FindingKind
from queenright.health.settings import HealthSettings
from queenright.health.vitals.calls import Repeat
from queenright.health.vitals.error_rate import MAX_ERROR_RATE
from queenright.health.vitals.vital_facts import CONTEXT_FULL
from queenright.health.vitals.vital_signs import VitalSigns


class DetectorValue(NamedTuple):
    """The count of a detector at one point in time."""

    kind: FindingKind
    value: float
    limit: float
    """The detector fires from here."""
    text: str


def detector_values(v: VitalSigns, settings: HealthSettings, now: float) -> Iterator[DetectorValue]:
    """Yield what the detectors count that have counted anything; of clocks, the seconds."""
    yield from detector_counts(v, settings)
    if v.ended_at is not None:
        return
    for clock in detector_clocks(v, settings):
        if now > clock.since:
            yield DetectorValue(clock.kind, now - clock.since, clock.due - clock.since, "seconds")


def detector_counts(v: VitalSigns, settings: HealthSettings) -> Iterator[DetectorValue]:
    """Yield what the detectors count that events move; time alone changes none of it."""
    if v.ended_at is not None:
        return
    loops, bands, kinds = settings.loops, settings.bands, FindingKind
    if v.calls is not None:
        for repeat in v.calls.repeats():
            yield _repeat(repeat, settings)
    refusals = max((one.count_recent(v.tool_calls_total, loops.window) for one in v.refusals), default=0)
    known_results = max(loops.known_results, math.ceil(loops.known_results_share * v.results_since_gain))
    counts = (
        (kinds.ERROR_STREAK, v.streak, loops.error_streak, f"failures of {v.streak_tool}: {v.streak_error}"),
        (
            kinds.ERROR_STREAK,
            v.failed_calls,
            failed_calls_limit(v, settings),
            "turns in a row in which tool calls failed",
        ),
        (kinds.ERROR_STREAK, refusals, loops.refused_changes, "edits or commands refused in the same way"),
        (kinds.RETRY_STORM, v.steps_since_last_accept, bands.warning, "bad steps since the last ACCEPT"),
        (kinds.ZERO_PROGRESS, v.stale_calls, loops.stale_calls, "calls in a row that returned nothing new"),
        (
            kinds.ZERO_PROGRESS,
            v.stale_results_since_gain,
            known_results,
            "known results since the last change",
        ),
        (kinds.ZERO_PROGRESS, v.fruitless, loops.fruitless_calls, "new searches or reads that found nothing"),
        (kinds.ZERO_PROGRESS, hasty_polls(v, settings), loops.polls, "polls with the same result"),
        (kinds.NO_TOOL_CALLS, v.idle_turns, loops.idle_turns, "answers in a row without a tool call"),
        (
            kinds.CONTEXT_EXHAUSTED if v.llm_error == CONTEXT_FULL else kinds.PROVIDER_FAILURE,
            v.llm_errors,
            loops.provider_failures,
            "failed model calls in a row",
        ),
        (kinds.TOKEN_SPIKE, v.token_spike, loops.token_spike_factor, "times the usual input tokens"),
    )
    for kind, value, limit, text in counts:
        if value:
            yield DetectorValue(kind, value, limit, text)
    if v.error_share:
        text = f"share of the last {v.outcomes} calls and steps that failed"
        yield DetectorValue(kinds.ERROR_RATE, v.error_share, MAX_ERROR_RATE, text)


def _repeat(repeat: Repeat, settings: HealthSettings) -> DetectorValue:
    """Return the count of a repeat that is nearest to its threshold."""
    loops = settings.loops
    if repeat.is_blind:
        candidates = [(repeat.run, loops.blind_repeats, "equal calls in a row, results unknown")]
    else:
        candidates = [
            (repeat.run, loops.consecutive, "equal calls in a row"),
            (repeat.in_window, loops.repeats, f"equal calls among {loops.window}"),
            (
                repeat.at_all,
                loops.repeats_at_all,
                f"equal calls among {loops.window}, regardless of changes in between",
            ),
        ]
        if repeat.period > 1:
            candidates.append((repeat.cycles, loops.cycles, f"rounds of {repeat.period} calls"))
    value, limit, text = max(candidates, key=lambda values: values[0] / values[1])
    return DetectorValue(FindingKind.DOOM_LOOP, value, limit, f"{text}: {repeat.tool}")
