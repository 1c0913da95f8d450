"""
Detect workers that have stopped: pure functions of vital signs and the time.

``deadlines`` computes when each detector finds something for the first time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from queenright.health.detection.deadlines import (
    OUTPUT_UNCHANGED_SECONDS,
    checkpoint_due,
    checkpoint_from,
    heartbeat_due,
    may_have_ended,
    no_tokens_from,
    no_tool_call_from,
    overdue_tool,
    unchanged_from,
)
from queenright.health.detection.stall_clock import StallClock, activity_known_until, is_held, stall_clock
from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.severity_bands import severity_by_duration
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
    clock = stall_clock(v, settings)
    return None if clock is None or now < clock.due else _stall_finding(v, clock, now)


def detect_stall_by_learned_clock(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that has been silent for longer than usual, where learned limits are in shadow."""
    clock, shadow = stall_clock(v, settings), stall_clock(v, settings, shadow=True)
    if clock is None or shadow is None or shadow.learned_limit is None or not shadow.due <= now < clock.due:
        return None
    return _stall_finding(v, shadow, now)


def _stall_finding(v: VitalSigns, clock: StallClock, now: float) -> Finding:
    silent = now - clock.since
    where = "held by its guard" if is_held(v) else _PHASE_TEXT[clock.phase]
    if clock.tool is not None and clock.tool.tool:
        timeout = (
            "" if clock.tool.timeout is None else f", which declared a timeout of {span(clock.tool.timeout)}"
        )
        where = f"in a call of {clock.tool.tool}{timeout}"
    ticket = now >= clock.ticket_due
    # A source that reports only ends cannot tell a stall from waiting for a person or a closed laptop.
    is_known = clock.phase is not Phase.UNKNOWN or v.last_heartbeat is not None
    if not is_known and v.has_user:
        ticket, severity = False, Severity.LOW
    elif ticket and is_known and not _is_unsure(v, clock.ticket_due):
        severity = Severity.CRITICAL
    else:
        severity = Severity.MEDIUM
    evidence = f"nothing happened for {span(silent)} {where}{_describe_learned(clock)}{_since_away(v)}"
    return Finding.of(FindingKind.STALL, severity, evidence, clock.since, ticket=ticket)


def _describe_learned(clock: StallClock) -> str:
    """Return the origin of a learned limit."""
    origin = clock.learned_limit
    if origin is None:
        return ""
    return (
        f"; its usual is {span(origin.usual)} ({origin.calls} times), so it is {span(origin.limit)} "
        f"instead of {span(origin.configured_limit)}"
    )


def _is_unsure(v: VitalSigns, due_at: float) -> bool:
    """Return whether a worker may have ended during an outage, before the finding was due."""
    return may_have_ended(v) and v.away is not None and due_at > v.away[1]


def _since_away(v: VitalSigns) -> str:
    """Return a note about a worker that has sent nothing since the service was away, or ""."""
    if v.away is None or not may_have_ended(v):
        return ""
    away_from, back_at = (datetime.fromtimestamp(at, UTC).strftime("%H:%M") for at in v.away)
    return f"; no events since Queenright was away from {away_from} to {back_at} UTC: it may have ended"


def detect_tool_timeout(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a call past its declared timeout while the worker is active otherwise."""
    tool = overdue_tool(v)
    if tool is None or tool.timeout is None or now < tool.started + tool.timeout:
        return None
    evidence = (
        f"{tool.tool} declared a timeout of {span(tool.timeout)} and has run for {span(now - tool.started)}"
    )
    return Finding.of(FindingKind.TOOL_TIMEOUT, Severity.LOW, evidence, tool.started + tool.timeout)


def detect_heartbeat_missing(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """
    Find a process whose heartbeats are missing.

    A late heartbeat is shown until one is on time, so that the finding does not flap.
    """
    due_at = heartbeat_due(v, settings)
    if due_at is None:
        return None
    if now < due_at:
        if not v.heartbeat_late:
            return None
        evidence = "the last heartbeat came late"
        since = v.last_heartbeat or v.last_activity
        return Finding.of(FindingKind.HEARTBEAT_MISSING, Severity.LOW, evidence, since)
    last = max(v.last_heartbeat or 0.0, v.last_activity)
    evidence = f"no heartbeat and no other activity for {span(now - last)}{_since_away(v)}"
    return Finding.of(FindingKind.HEARTBEAT_MISSING, Severity.MEDIUM, evidence, last)


def detect_checkpoint_stale(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that makes checkpoints and has an old one."""
    since, check = checkpoint_from(v), settings.health_check
    if since is None:
        return None
    degraded_at = checkpoint_due(v, check.checkpoint_degraded_seconds)
    due_at = checkpoint_due(v, check.checkpoint_stale_threshold_seconds)
    if degraded_at is None or due_at is None or now < degraded_at:
        return None
    stale = now >= due_at and not _is_unsure(v, due_at)
    evidence = f"the last checkpoint is {span(now - since)} old{_since_away(v)}"
    severity = Severity.MEDIUM if stale else Severity.LOW
    return Finding.of(FindingKind.CHECKPOINT_STALE, severity, evidence, since)


def detect_no_tool_calls_for_long(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find an active worker with tools that calls no tool and makes no progress."""
    since = no_tool_call_from(v)
    limit = settings.health_check.no_tool_call_seconds
    if since is None or now < since + limit or v.last_activity <= since:
        return None  # without any activity it is stalled
    now = activity_known_until(v, settings, now)
    if now < since + limit:
        return None
    is_certain = not _is_unsure(v, since + limit) and 2 * v.certain_idle_turns >= v.idle_turns
    evidence = f"no tool call and no progress for {span(now - since)}{_since_away(v)}"
    severity = severity_by_duration(now - since, limit) if is_certain else Severity.LOW
    return Finding.of(FindingKind.NO_TOOL_CALLS, severity, evidence, since)


def detect_no_tokens(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """
    Find an active worker that reports tokens and uses none.

    Without progress it is stuck; otherwise it may be in a part that needs no model.
    """
    since, limit = no_tokens_from(v), settings.health_check.no_tokens_seconds
    if since is None or now < since + limit:
        return None
    now = activity_known_until(v, settings, now)
    if now < since + limit:
        return None
    progress = max(since, v.progress_from or since)
    due_at = progress + limit
    nowhere = now >= due_at
    is_certain = nowhere and not _is_unsure(v, due_at)
    words = f", no progress for {span(now - progress)}" if nowhere else ""
    evidence = f"no tokens used for {span(now - since)}{words}{_since_away(v)}"
    return Finding.of(FindingKind.NO_TOKENS, Severity.MEDIUM if is_certain else Severity.LOW, evidence, since)


def detect_output_unchanged(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that keeps reporting the same output."""
    since = unchanged_from(v, settings)
    if v.output is None or since is None or now < since + OUTPUT_UNCHANGED_SECONDS:
        return None
    evidence = f"{v.output.reports} reports in {span(now - since)} were identical: {v.output}"
    return Finding.of(FindingKind.OUTPUT_UNCHANGED, Severity.LOW, evidence, since)


def span(seconds: float) -> str:
    """Return a duration with its unit."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
