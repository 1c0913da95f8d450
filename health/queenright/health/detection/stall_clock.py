"""The stall clock: how long a worker has been silent, and when it is stalled. Waiting stops it."""

from __future__ import annotations

from typing import NamedTuple

from queenright.health.settings import HealthSettings
from queenright.health.vitals.activity import duration_key
from queenright.health.vitals.learned_clocks import LearnedLimit
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_signs import OpenTool, VitalSigns
from queenright.instrumentation.names import Phase, WaitingReason


class StallClock(NamedTuple):
    """
    How long the worker may stay silent.

    It is stalled from ``due``, and gets a ticket from ``ticket_due``. The two differ only for a tool that
    declared a timeout shorter than the limit between steps.
    """

    phase: Phase
    since: float
    due: float
    ticket_due: float
    tool: OpenTool | None = None
    learned_limit: LearnedLimit | None = None
    """The origin of the limit, if it was learned."""


def silent_since(v: VitalSigns) -> float:
    """Return when the current silence began."""
    return max(v.last_activity, v.clock_base)


def activity_known_until(v: VitalSigns, settings: HealthSettings, now: float) -> float:
    """
    Return the time until which the worker's activity is known.

    If calls are reported only when they end, a longer silence may be a running call.
    """
    if v.phase is not Phase.UNKNOWN:
        return now
    return min(now, silent_since(v) + settings.stall.idle_seconds)


def may_be_silent(v: VitalSigns) -> bool:
    """
    Return whether silence is normal: the worker waits, has ended, or its status is unknown.

    A wait for a rate limit has a known end: silence counts from then on.
    """
    waits = v.waiting is not None and v.limited_until is None
    return waits or v.ended_at is not None or v.status is WorkerStatus.UNKNOWN


def is_held(v: VitalSigns) -> bool:
    """Return whether a worker that runs is held by its guard."""
    return v.waiting is WaitingReason.HELD and v.ended_at is None and v.status is not WorkerStatus.UNKNOWN


def stall_clock(v: VitalSigns, settings: HealthSettings, *, shadow: bool = False) -> StallClock | None:
    """
    Return the running stall clock, or None while the worker may be silent.

    A worker that only ever sent heartbeats has none: its activity is unknown. ``shadow`` returns the clock
    with learned limits that are in shadow mode.
    """
    since, limits = silent_since(v), settings.stall
    if is_held(v):
        # The guard ends the visit when judge and interventions have had their time.
        due_at = since + ladder_seconds(settings) + limits.idle_seconds
        return StallClock(Phase.IDLE, since, due_at, due_at)
    if may_be_silent(v) or v.only_heartbeats:
        return None
    phase = v.phase
    tool = v.open_tool if phase is Phase.TOOL else None
    if tool is not None and tool.timeout is not None:
        due_at = max(tool.started, since) + tool.timeout
        return StallClock(phase, since, due_at, max(due_at, since + limits.idle_seconds), tool)
    limit = {
        Phase.IDLE: limits.idle_seconds,
        Phase.LLM: limits.llm_seconds,
        Phase.TOOL: limits.tool_seconds,
        Phase.UNKNOWN: limits.unknown_seconds,
    }[phase]
    origin = None
    if v.clocks is not None and settings.learned_clocks.mode == ("shadow" if shadow else "on"):
        what = tool.tool if tool is not None else v.model if phase is Phase.LLM else ""
        origin = v.clocks.limit(duration_key(phase, what), limit, settings.learned_clocks)
    if v.children_at is not None and phase in (Phase.TOOL, Phase.UNKNOWN):
        since = max(since, v.children_at)
    due_at = since + (limit if origin is None else origin.limit)
    return StallClock(phase, since, due_at, due_at, tool, origin)


def ladder_seconds(settings: HealthSettings) -> float:
    """Return how long judge, nudges and escalation may take with one worker, in seconds."""
    judge, intervention = settings.judge, settings.intervention
    judging = judge.start_grace_seconds + judge.interval_seconds + judge.triage_timeout_seconds
    if not intervention.enabled or intervention.is_dry("nudge"):
        return judging
    nudge = intervention.nudge
    nudging = nudge.max_attempts * nudge.interval_seconds if nudge.enabled else 0.0
    return judging + intervention.quiet_seconds + nudging + intervention.escalation.timeout_seconds
