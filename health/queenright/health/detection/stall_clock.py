"""The stall clock: how long a worker has been silent, and when it is stalled. Waiting stops it."""

from __future__ import annotations

from typing import NamedTuple

from queenright.health.settings import HealthSettings
from queenright.health.vitals.activity import make_duration_key
from queenright.health.vitals.learned_clocks import LearnedLimit
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_signs import OpenTool, VitalSigns
from queenright.instrumentation.names import Phase, WaitingReason


class StallClock(NamedTuple):
    """
    How long the worker may stay silent.

    The worker is stalled at ``due``, and gets a ticket at ``ticket_due``. The two differ only for a tool
    whose declared timeout is shorter than the limit between steps.
    """

    phase: Phase
    since: float
    due: float
    ticket_due: float
    tool: OpenTool | None = None
    learned_limit: LearnedLimit | None = None
    """The learned limit, if it determines ``due``."""


def find_silence_start(v: VitalSigns) -> float:
    """Return when the current silence began."""
    return max(v.last_activity, v.clock_base)


def find_known_activity_end(v: VitalSigns, settings: HealthSettings, now: float) -> float:
    """
    Return the time until which the worker's activity is known.

    If calls are reported only when they end, a call may be running after that time.
    """
    if v.phase is not Phase.UNKNOWN:
        return now
    return min(now, find_silence_start(v) + settings.stall.idle_seconds)


def may_be_silent(v: VitalSigns) -> bool:
    """
    Return whether silence is normal, because the worker waits, has ended, or has an unknown status.

    A wait for a rate limit has a known end, from which silence counts.
    """
    is_waiting = v.waiting is not None and v.limited_until is None
    return is_waiting or v.ended_at is not None or v.status is WorkerStatus.UNKNOWN


def is_held(v: VitalSigns) -> bool:
    """Return whether the worker is running and held by its guard."""
    return v.waiting is WaitingReason.HELD and v.ended_at is None and v.status is not WorkerStatus.UNKNOWN


def find_stall_clock(v: VitalSigns, settings: HealthSettings, *, shadow: bool = False) -> StallClock | None:
    """
    Return the running stall clock, or None while the worker may be silent.

    A worker that only sends heartbeats has no stall clock, because its activity is unknown. With ``shadow``,
    the clock uses learned limits that are in shadow mode.
    """
    since, limits = find_silence_start(v), settings.stall
    if is_held(v):
        # The guard ends the visit after the time that the judge and the interventions may take.
        due_at = since + compute_ladder_seconds(settings) + limits.idle_seconds
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
    learned_limit = None
    if v.clocks is not None and settings.learned_clocks.mode == ("shadow" if shadow else "on"):
        name = tool.tool if tool is not None else v.model if phase is Phase.LLM else ""
        learned_limit = v.clocks.limit(make_duration_key(phase, name), limit, settings.learned_clocks)
    if v.children_at is not None and phase in (Phase.TOOL, Phase.UNKNOWN):
        since = max(since, v.children_at)
    due_at = since + (limit if learned_limit is None else learned_limit.limit)
    return StallClock(phase, since, due_at, due_at, tool, learned_limit)


def compute_ladder_seconds(settings: HealthSettings) -> float:
    """Return how many seconds the judge, the nudges and the escalation of one worker may take."""
    judge, intervention = settings.judge, settings.intervention
    judge_seconds = judge.start_grace_seconds + judge.interval_seconds + judge.triage_timeout_seconds
    if not intervention.enabled or intervention.is_dry("nudge"):
        return judge_seconds
    nudge = intervention.nudge
    nudge_seconds = nudge.max_attempts * nudge.interval_seconds if nudge.enabled else 0.0
    return (
        judge_seconds + intervention.quiet_seconds + nudge_seconds + intervention.escalation.timeout_seconds
    )
