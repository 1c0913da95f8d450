"""
Detectors: pure functions from vital signs to findings.

They never read a clock, so a recorded run gets the verdict that the live one got. Each
returns what it saw, with evidence, or None. ``docs/detection.md`` gives the reasons of
the thresholds and what they measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from queenright.health.calls import Repeat
from queenright.health.deadlines import (
    checkpoint_from,
    grace_until,
    heartbeat_due,
    no_tool_call_from,
    overdue_tool,
    stall_clock,
)
from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.vitals import VitalSigns
from queenright.instrumentation.names import Phase

Detector = Callable[[VitalSigns, HealthSettings, float], Finding | None]

_DOING: Final = {
    Phase.IDLE: "between steps",
    Phase.LLM: "in an LLM call",
    Phase.TOOL: "in a tool call",
    Phase.UNKNOWN: "in an unknown phase",
}


def detect(v: VitalSigns, settings: HealthSettings, now: float) -> list[Finding]:
    """
    Return everything there is to say about a worker at ``now``, at most one finding a kind.

    In the start grace of an incarnation findings are shown, and none is a reason for a ticket.
    """
    if v.ended_at is not None:
        return []
    found = [finding for detector in DETECTORS if (finding := detector(v, settings, now)) is not None]
    if found and now < grace_until(v, settings):
        return [replace(finding, ticket=False) for finding in found]
    return found


def suspicious(v: VitalSigns, settings: HealthSettings) -> bool:
    """Return whether any detector that counts, rather than waits, could have something to say. Cheap."""
    loops = settings.loops
    return (
        v.steps_since_last_accept >= settings.bands.warning
        or v.stale_calls >= loops.stale_calls
        or (v.told >= loops.told_calls and v.told_known >= loops.told_known_share * v.told)
        or v.streak >= loops.error_streak
        or v.llm_errors >= loops.provider_failures
        or v.token_spike > 0.0
        or v.consecutive_failures > settings.health_check.consecutive_failures
        or (v.calls is not None and v.calls.peak >= min(loops.consecutive, loops.cycles, loops.repeats))
    )


def detect_provider_failure(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a run of LLM API errors: the provider's trouble, not the agent's."""
    limit = settings.loops.provider_failures
    if v.llm_errors < limit:
        return None
    return Finding(
        kind=FindingKind.PROVIDER_FAILURE,
        severity=_grown(v.llm_errors, limit, settings),
        evidence=f"{v.llm_errors} LLM calls failed in a row, last with {v.llm_error}",
        since=v.llm_error_since,
    )


def detect_doom_loop(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find the same call with the same result coming back: in a row, in a cycle, or with others between."""
    loops = settings.loops
    if v.calls is None or v.calls.peak < min(loops.consecutive, loops.cycles, loops.repeats):
        return None
    best: Finding | None = None
    for repeat in v.calls.repeats():
        finding = _loop(repeat, settings)
        if finding is not None and (best is None or finding.severity.rank > best.severity.rank):
            best = finding
    return best


def _loop(repeat: Repeat, settings: HealthSettings) -> Finding | None:
    loops = settings.loops
    in_a_row = repeat.run >= loops.consecutive
    in_cycle = repeat.period > 1 and repeat.cycles >= loops.cycles
    often = repeat.in_window >= loops.repeats
    if repeat.blind:
        if repeat.run < loops.blind_repeats:
            return None
        how = f"{repeat.run} times in a row with the same arguments (its results are not reported)"
    elif in_cycle:
        how = f"{repeat.times} times with the same arguments and result, in a cycle of {repeat.period} calls"
    elif in_a_row or often:
        how = f"{repeat.times} times with the same arguments and result"
        if repeat.run > 1:
            how += " in a row" if repeat.run == repeat.times else f", the last {repeat.run} in a row"
    else:
        return None
    return Finding(
        kind=FindingKind.DOOM_LOOP,
        severity=_grown(repeat.times, loops.repeats, settings),
        evidence=f"{repeat.tool} was called {how}",
        since=repeat.since,
    )


def detect_error_streak(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find one tool failing with one class of error, whatever the arguments, many times running."""
    limit = settings.loops.error_streak
    if v.streak < limit:
        return None
    return Finding(
        kind=FindingKind.ERROR_STREAK,
        severity=_grown(v.streak, limit, settings),
        evidence=f"{v.streak_tool} failed {v.streak} times in a row with {v.streak_error}",
        since=v.streak_since,
    )


def _grown(times: int, limit: int, settings: HealthSettings) -> Severity:
    """Return how bad so many repeats are: high from twice the limit, critical from where bad steps are."""
    if times >= max(settings.bands.critical, 2 * limit + 1):
        return Severity.CRITICAL
    return Severity.HIGH if times >= 2 * limit else Severity.MEDIUM


def detect_retry_storm(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find steps judged bad since the last ACCEPT, by the bands."""
    bad, bands = v.steps_since_last_accept, settings.bands
    if bad < bands.warning:
        return None
    severity, ticket = Severity.LOW, False
    if bad >= bands.critical:
        severity, ticket = Severity.CRITICAL, True
    elif bad >= bands.high:
        severity, ticket = Severity.HIGH, True
    elif bad >= bands.medium and 2 * v.bad_repeats >= bad:
        severity, ticket = Severity.MEDIUM, True
    return Finding(
        kind=FindingKind.RETRY_STORM,
        severity=severity,
        evidence=f"{bad} bad steps since the last ACCEPT, {v.bad_repeats} of them brought nothing new",
        since=v.bad_since,
        ticket=ticket,
    )


def detect_zero_progress(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """
    Find tool calls that tell nothing new.

    Either a run of them whose results were known from the same call, or were known errors; or,
    weaker and so never a ticket, most of all that was told since the worker last got further.
    """
    loops = settings.loops
    limit = loops.stale_calls
    if v.stale_calls < limit:
        if v.told < loops.told_calls or v.told_known < loops.told_known_share * v.told:
            return None
        return Finding(
            kind=FindingKind.ZERO_PROGRESS,
            severity=Severity.LOW,
            evidence=f"of the last {v.told} tool calls few told anything that was not known",
            since=v.last_progress or v.started_at,
            ticket=False,
        )
    return Finding(
        kind=FindingKind.ZERO_PROGRESS,
        severity=_grown(v.stale_calls, limit, settings),
        evidence=f"the last {v.stale_calls} tool calls told nothing that was not known",
        since=v.stale_since,
    )


def detect_stall(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that does nothing for longer than its phase allows."""
    clock = stall_clock(v, settings)
    if clock is None or now < clock.due:
        return None
    silent = now - clock.since
    where = _DOING[clock.phase]
    if clock.tool is not None and clock.tool.tool:
        declared = "" if clock.tool.timeout is None else f", which declared {_span(clock.tool.timeout)}"
        where = f"in a call of {clock.tool.tool}{declared}"
    ticket = now >= clock.ticket_due
    return Finding(
        kind=FindingKind.STALL,
        severity=Severity.CRITICAL if ticket else Severity.MEDIUM,
        evidence=f"nothing happened for {_span(silent)} {where}",
        since=clock.since,
        ticket=ticket,
    )


def detect_tool_timeout(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a call past the time that it declared, while the worker does other things."""
    tool = overdue_tool(v)
    if tool is None or tool.timeout is None or now < tool.started + tool.timeout:
        return None
    return Finding(
        kind=FindingKind.TOOL_TIMEOUT,
        severity=Severity.LOW,
        evidence=f"{tool.tool} declared {_span(tool.timeout)} and runs for {_span(now - tool.started)}",
        since=tool.started + tool.timeout,
        ticket=False,
    )


def detect_heartbeat_missing(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a process that no longer says it lives."""
    due = heartbeat_due(v, settings)
    if due is None or now < due:
        return None
    last = max(v.last_heartbeat or 0.0, v.last_activity)
    return Finding(
        kind=FindingKind.HEARTBEAT_MISSING,
        severity=Severity.MEDIUM,
        evidence=f"no heartbeat and no other sign of life for {_span(now - last)}",
        since=last,
    )


def detect_checkpoint_stale(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that makes checkpoints and has not made one for long."""
    since, check = checkpoint_from(v), settings.health_check
    if since is None or now < since + check.checkpoint_degraded_seconds:
        return None
    stale = now >= since + check.checkpoint_stale_threshold_seconds
    return Finding(
        kind=FindingKind.CHECKPOINT_STALE,
        severity=Severity.MEDIUM if stale else Severity.LOW,
        evidence=f"the last checkpoint is {_span(now - since)} old",
        since=since,
        ticket=stale,
    )


def detect_no_tool_calls(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that has tools, goes on, and neither calls one nor gets further."""
    since = no_tool_call_from(v)
    if since is None or now < since + settings.health_check.no_tool_call_seconds:
        return None
    return Finding(
        kind=FindingKind.NO_TOOL_CALLS,
        severity=Severity.MEDIUM,
        evidence=f"no tool call and no progress for {_span(now - since)}",
        since=since,
    )


def detect_token_spike(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find an LLM call that was sent many times more than the usual."""
    if v.token_spike <= 0.0:
        return None
    return Finding(
        kind=FindingKind.TOKEN_SPIKE,
        severity=Severity.LOW,
        evidence=f"the last LLM call was sent {v.token_spike:.1f} times the usual number of tokens",
        since=v.last_activity,
        ticket=False,
    )


def _span(seconds: float) -> str:
    """Return a time span as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


DETECTORS: Final[tuple[Detector, ...]] = (
    detect_provider_failure,
    detect_doom_loop,
    detect_error_streak,
    detect_retry_storm,
    detect_stall,
    detect_zero_progress,
    detect_no_tool_calls,
    detect_checkpoint_stale,
    detect_heartbeat_missing,
    detect_tool_timeout,
    detect_token_spike,
)
