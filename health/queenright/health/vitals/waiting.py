"""
The waits of a worker: when they begin and end.

Silence is normal while a worker waits, so it counts from the end of the wait.
"""

from __future__ import annotations

from queenright.health.vitals.vital_state import VitalState
from queenright.instrumentation.names import WaitingReason


def begin_wait(
    v: VitalState, reason: WaitingReason, at: float, *, question: str = "", held_by: str = ""
) -> None:
    """Record that the worker waits. A repeated report neither restarts the wait nor clears its question."""
    if question or v.waiting is not reason:
        v.question = question
    v.held_by = held_by
    v.has_user = v.has_user or reason is WaitingReason.USER_INPUT
    if v.waiting is not reason:
        v.waiting = reason
        v.waiting_since = at


def wait_for_rate_limit(v: VitalState, at: float, until: float) -> bool:
    """
    Record a wait until the rate limit ends, from which silence counts.

    Return False if calls are still refused long after the end that the first refusal stated. The provider
    then counts as failing.
    """
    if v.limit_due is None:
        v.limit_due = until
    if at - v.limit_due >= v.settings.health_check.no_tool_call_seconds:
        return False
    begin_wait(v, WaitingReason.BACKOFF, at)
    v.limited_until = v.clock_base = max(until, v.clock_base)
    return True


def end_wait(v: VitalState, at: float) -> None:
    """Record the end of a wait, from which silence counts."""
    if v.limited_until is not None:
        v.clock_base = at
    if v.waiting is WaitingReason.USER_INPUT:
        v.idle_turns = 0
    clear_wait(v)
    v.clock_base = max(v.clock_base, at)


def clear_wait(v: VitalState) -> None:
    """Clear the wait. Silence counts from the same time as before."""
    v.waiting = v.waiting_since = v.limited_until = None
    v.question = v.held_by = ""
