"""
Detectors of workers that have stopped: pure functions of vital signs and the time.

``deadlines`` computes when each detector fires for the first time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from queenright.health.detection.deadlines import (
    OUTPUT_UNCHANGED_SECONDS,
    find_checkpoint_deadline,
    find_checkpoint_start,
    find_heartbeat_deadline,
    find_next_tool_timeout,
    find_no_tokens_start,
    find_no_tool_call_start,
    find_unchanged_output_start,
    may_have_ended,
)
from queenright.health.detection.stall_clock import (
    StallClock,
    find_known_activity_end,
    find_stall_clock,
    is_held,
)
from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.severity_bands import rate_duration
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.names import Phase

_PHASE_TEXT: Final = {
    Phase.IDLE: "between steps",
    Phase.LLM: "in an LLM call",
    Phase.TOOL: "in a tool call",
    Phase.UNKNOWN: "(a call may be open: calls are reported when they end)",
}


def detect_stall(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that has been silent for longer than its phase allows."""
    if now <= v.last_activity:
        return None
    clock = find_stall_clock(v, settings)
    return None if clock is None or now < clock.due else _make_stall_finding(v, clock, now)


def detect_stall_by_learned_clock(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that has been silent for longer than a learned limit that is in shadow mode."""
    clock, shadow = find_stall_clock(v, settings), find_stall_clock(v, settings, shadow=True)
    if clock is None or shadow is None or shadow.learned_limit is None or not shadow.due <= now < clock.due:
        return None
    return _make_stall_finding(v, shadow, now)


def _make_stall_finding(v: VitalSigns, clock: StallClock, now: float) -> Finding:
    silent = now - clock.since
    where = "held by its guard" if is_held(v) else _PHASE_TEXT[clock.phase]
    if clock.tool is not None and clock.tool.tool:
        timeout = (
            ""
            if clock.tool.timeout is None
            else f", which declared a timeout of {format_span(clock.tool.timeout)}"
        )
        where = f"in a call of {clock.tool.tool}{timeout}"
    ticket = now >= clock.ticket_due
    # If a source reports calls only when they end, a stall looks like a wait for a person or a closed laptop.
    is_known = clock.phase is not Phase.UNKNOWN or v.last_heartbeat is not None
    if not is_known and v.has_user:
        ticket, severity = False, Severity.LOW
    elif ticket and is_known and not _may_have_ended_before(v, clock.ticket_due):
        severity = Severity.CRITICAL
    else:
        severity = Severity.MEDIUM
    notes = f"{_describe_learned_limit(clock)}{_describe_outage(v)}"
    evidence = f"nothing happened for {format_span(silent)} {where}{notes}"
    return Finding.of(FindingKind.STALL, severity, evidence, clock.since, ticket=ticket)


def _describe_learned_limit(clock: StallClock) -> str:
    """Return how the clock's limit was learned, or an empty string."""
    learned_limit = clock.learned_limit
    if learned_limit is None:
        return ""
    return (
        f"; its usual is {format_span(learned_limit.usual)} ({learned_limit.calls} times), "
        f"so it is {format_span(learned_limit.limit)} "
        f"instead of {format_span(learned_limit.configured_limit)}"
    )


def _may_have_ended_before(v: VitalSigns, due_at: float) -> bool:
    """Return whether a worker may have ended during an outage, before the finding was due."""
    return may_have_ended(v) and v.away is not None and due_at > v.away[1]


def _describe_outage(v: VitalSigns) -> str:
    """
    Return a note if the worker has sent nothing since the service was down, otherwise an empty string.
    """
    if v.away is None or not may_have_ended(v):
        return ""
    outage_start, outage_end = (datetime.fromtimestamp(at, UTC).strftime("%H:%M") for at in v.away)
    return f"; no events since Queenright was away from {outage_start} to {outage_end} UTC: it may have ended"


def detect_tool_timeout(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a call that exceeds its declared timeout."""
    tool = find_next_tool_timeout(v)
    if tool is None or tool.timeout is None or now < tool.started + tool.timeout:
        return None
    timeout, elapsed = format_span(tool.timeout), format_span(now - tool.started)
    evidence = f"{tool.tool} declared a timeout of {timeout} and has run for {elapsed}"
    return Finding.of(FindingKind.TOOL_TIMEOUT, Severity.LOW, evidence, tool.started + tool.timeout)


def detect_heartbeat_missing(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """
    Find a process whose heartbeats are missing.

    After a late heartbeat, the finding lasts until a heartbeat is on time, so that it does not flap.
    """
    due_at = find_heartbeat_deadline(v, settings)
    if due_at is None:
        return None
    if now < due_at:
        if not v.heartbeat_late:
            return None
        evidence = "the last heartbeat came late"
        since = v.last_heartbeat or v.last_activity
        return Finding.of(FindingKind.HEARTBEAT_MISSING, Severity.LOW, evidence, since)
    last = max(v.last_heartbeat or 0.0, v.last_activity)
    evidence = f"no heartbeat and no other activity for {format_span(now - last)}{_describe_outage(v)}"
    return Finding.of(FindingKind.HEARTBEAT_MISSING, Severity.MEDIUM, evidence, last)


def detect_checkpoint_stale(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker whose last checkpoint is old."""
    since, check = find_checkpoint_start(v), settings.health_check
    if since is None:
        return None
    degraded_at = find_checkpoint_deadline(v, check.checkpoint_degraded_seconds)
    due_at = find_checkpoint_deadline(v, check.checkpoint_stale_threshold_seconds)
    if degraded_at is None or due_at is None or now < degraded_at:
        return None
    stale = now >= due_at and not _may_have_ended_before(v, due_at)
    evidence = f"the last checkpoint is {format_span(now - since)} old{_describe_outage(v)}"
    severity = Severity.MEDIUM if stale else Severity.LOW
    return Finding.of(FindingKind.CHECKPOINT_STALE, severity, evidence, since)


def detect_no_tool_calls_for_long(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find an active worker with tools that calls no tool and makes no progress."""
    since = find_no_tool_call_start(v)
    limit = settings.health_check.no_tool_call_seconds
    if since is None or now < since + limit or v.last_activity <= since:
        return None  # without any activity, this is a stall
    now = find_known_activity_end(v, settings, now)
    if now < since + limit:
        return None
    is_certain = not _may_have_ended_before(v, since + limit) and 2 * v.certain_idle_turns >= v.idle_turns
    evidence = f"no tool call and no progress for {format_span(now - since)}{_describe_outage(v)}"
    severity = rate_duration(now - since, limit) if is_certain else Severity.LOW
    return Finding.of(FindingKind.NO_TOOL_CALLS, severity, evidence, since)


def detect_no_tokens(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """
    Find an active worker that reports tokens and uses none.

    Without progress it is stuck. Otherwise its current work may need no model.
    """
    since, limit = find_no_tokens_start(v), settings.health_check.no_tokens_seconds
    if since is None or now < since + limit:
        return None
    now = find_known_activity_end(v, settings, now)
    if now < since + limit:
        return None
    progress = max(since, v.progress_from or since)
    due_at = progress + limit
    has_no_progress = now >= due_at
    is_certain = has_no_progress and not _may_have_ended_before(v, due_at)
    progress_note = f", no progress for {format_span(now - progress)}" if has_no_progress else ""
    evidence = f"no tokens used for {format_span(now - since)}{progress_note}{_describe_outage(v)}"
    return Finding.of(FindingKind.NO_TOKENS, Severity.MEDIUM if is_certain else Severity.LOW, evidence, since)


def detect_output_unchanged(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that keeps reporting the same output."""
    since = find_unchanged_output_start(v, settings)
    if v.output is None or since is None or now < since + OUTPUT_UNCHANGED_SECONDS:
        return None
    evidence = f"{v.output.reports} reports in {format_span(now - since)} were identical: {v.output}"
    return Finding.of(FindingKind.OUTPUT_UNCHANGED, Severity.LOW, evidence, since)


def format_span(seconds: float) -> str:
    """Format a duration in seconds with a suitable unit."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
