"""
A worker's activity: everything that it does, except heartbeats.

Activity ends silences and waits, and reopens a session that had ended.
"""

from __future__ import annotations

from functools import lru_cache

from queenright.health.vitals.incarnation import reopen_session
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_facts import OpenTool
from queenright.health.vitals.vital_state import VitalState
from queenright.health.vitals.waiting import end_wait
from queenright.instrumentation.names import Phase, WaitingReason


@lru_cache(4096)
def make_duration_key(phase: Phase, name: str = "") -> str:
    """Return the key under which the durations of a tool, a model or a pause are learned."""
    return f"{phase.value}:{name}"


def is_late_report(v: VitalState, at: float) -> bool:
    """
    Return whether work that ended at ``at`` belongs to a session that has ended, so that it only adds to
    totals.
    """
    return v.ended_at is not None and at <= v.ended_at and v.status is not WorkerStatus.TERMINATED


def record_activity(v: VitalState, at: float) -> bool:
    """Record activity. Return False if the worker has ended and this is a late report."""
    if v.ended_at is not None:
        is_stopped = v.status is WorkerStatus.TERMINATED and not v.has_new_start
        if at <= v.ended_at or is_stopped:
            return False
        reopen_session(v, at)
    v.only_heartbeats = False
    v.active_for = v.source.elapsed
    if at > v.last_activity:
        if v.clocks is not None and v.waiting is None:
            _learn_pause(v, at)
        v.last_activity = at
    return True


def record_start(v: VitalState, at: float) -> bool:
    """Record that the worker started work, which ends every wait except a pause."""
    if not record_activity(v, at):
        return False
    if v.waiting is not None and v.waiting is not WaitingReason.PAUSED:
        end_wait(v, at)
    return True


def record_end(v: VitalState, at: float) -> bool:
    """Record the end of a call. For a worker that does not report starts, it also ends a wait."""
    return record_activity(v, at) if v.start_records else record_start(v, at)


def _learn_pause(v: VitalState, at: float) -> None:
    phase = v.phase
    if phase in (Phase.IDLE, Phase.UNKNOWN) and v.clocks is not None:
        v.clocks.learn(make_duration_key(phase), at - max(v.last_activity, v.clock_base))


def learn_duration(v: VitalState, phase: Phase, name: str, took: float, at: float) -> None:
    """Learn how long a call took, unless the worker waited during it."""
    if v.clocks is not None and v.waiting is None and at - took >= v.clock_base:
        v.clocks.learn(make_duration_key(phase, name), took)


def get_tool_time_limit(v: VitalState, tool: OpenTool) -> float:
    """
    Return the seconds for which a tool may run without other activity, or 0 if unknown.

    This is the timeout that the tool declared, or a learned limit that is longer than the configured one.
    """
    if tool.timeout is not None:
        return tool.timeout
    if v.clocks is None or v.settings.learned_clocks.mode != "on":
        return 0.0
    base = v.settings.stall.tool_seconds
    limit = v.clocks.limit(make_duration_key(Phase.TOOL, tool.tool), base, v.settings.learned_clocks)
    return limit.limit if limit is not None and limit.limit > base else 0.0
