"""The current value of each detector, and the threshold at which it fires."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from queenright.health.detection.deadlines import list_detector_clocks
from queenright.health.detection.detectors import count_hasty_polls, get_failed_calls_limit
from queenright.health.findings import FindingKind
from queenright.health.settings import HealthSettings
from queenright.health.vitals.calls import Repeat
from queenright.health.vitals.error_rate import MAX_ERROR_RATE
from queenright.health.vitals.vital_facts import CONTEXT_FULL
from queenright.health.vitals.vital_signs import VitalSigns


class DetectorValue(NamedTuple):
    """The current value of a detector, and its threshold."""

    kind: FindingKind
    value: float
    limit: float
    """The detector fires when ``value`` reaches this."""
    description: str


def list_detector_values(v: VitalSigns, settings: HealthSettings, now: float) -> Iterator[DetectorValue]:
    """Yield the value of each detector with a count, and the elapsed seconds of each running clock."""
    yield from list_detector_counts(v, settings)
    if v.ended_at is not None:
        return
    for clock in list_detector_clocks(v, settings):
        if now > clock.since:
            yield DetectorValue(clock.kind, now - clock.since, clock.due - clock.since, "seconds")


def list_detector_counts(v: VitalSigns, settings: HealthSettings) -> Iterator[DetectorValue]:
    """Yield the values that only events change."""
    if v.ended_at is not None:
        return
    loops, bands, kinds = settings.loops, settings.bands, FindingKind
    if v.calls is not None:
        for repeat in v.calls.repeats():
            yield _measure_repeat(repeat, settings)
    refusals = max(
        (refusal.count_recent(v.tool_calls_total, loops.window) for refusal in v.refusals), default=0
    )
    known_results = max(loops.known_results, math.ceil(loops.known_results_share * v.results_since_gain))
    counts = (
        (kinds.ERROR_STREAK, v.streak, loops.error_streak, f"failures of {v.streak_tool}: {v.streak_error}"),
        (
            kinds.ERROR_STREAK,
            v.failed_calls,
            get_failed_calls_limit(v, settings),
            "turns in a row in which tool calls failed",
        ),
        (kinds.ERROR_STREAK, refusals, loops.refused_changes, "edits or commands refused in the same way"),
        (kinds.RETRY_STORM, v.steps_since_last_accept, bands.warning, "bad steps since the last ACCEPT"),
        (kinds.ZERO_PROGRESS, v.stale_calls, loops.stale_calls, "calls in a row that returned nothing new"),
        (
            kinds.ZERO_PROGRESS,
            v.stale_results_since_gain,
            known_results,
            "repeated or failed results since the last change",
        ),
        (kinds.ZERO_PROGRESS, v.fruitless, loops.fruitless_calls, "new searches or reads that found nothing"),
        (kinds.ZERO_PROGRESS, count_hasty_polls(v, settings), loops.polls, "polls with the same result"),
        (kinds.NO_TOOL_CALLS, v.idle_turns, loops.idle_turns, "answers in a row without a tool call"),
        (
            kinds.CONTEXT_EXHAUSTED if v.llm_error == CONTEXT_FULL else kinds.PROVIDER_FAILURE,
            v.llm_errors,
            loops.provider_failures,
            "failed model calls in a row",
        ),
        (kinds.TOKEN_SPIKE, v.token_spike, loops.token_spike_factor, "times the usual input tokens"),
    )
    for kind, value, limit, description in counts:
        if value:
            yield DetectorValue(kind, value, limit, description)
    if v.error_share:
        description = f"share of the last {v.outcomes} calls and steps that failed"
        yield DetectorValue(kinds.ERROR_RATE, v.error_share, MAX_ERROR_RATE, description)


def _measure_repeat(repeat: Repeat, settings: HealthSettings) -> DetectorValue:
    """Return the count of a repeat that is closest to its threshold."""
    loops = settings.loops
    if repeat.is_blind:
        counts = [(repeat.run, loops.blind_repeats, "identical calls in a row, results unknown")]
    else:
        counts = [
            (repeat.run, loops.consecutive, "identical calls in a row"),
            (repeat.in_window, loops.repeats, f"identical calls among {loops.window}"),
            (
                repeat.across_changes,
                loops.repeats_at_all,
                f"identical calls among {loops.window}, regardless of changes in between",
            ),
        ]
        if repeat.period > 1:
            counts.append((repeat.cycles, loops.cycles, f"rounds of a cycle of {repeat.period} calls"))
    value, limit, description = max(counts, key=lambda count: count[0] / count[1])
    return DetectorValue(FindingKind.DOOM_LOOP, value, limit, f"{description}: {repeat.tool}")
