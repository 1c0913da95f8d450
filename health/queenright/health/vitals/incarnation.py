"""Incarnations of a worker: a session starts, ends, or continues in another process."""

from __future__ import annotations

from queenright.health.vitals.progress import begin_visit, end_failed_calls
from queenright.health.vitals.resource_limits import NOT_CUT
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_state import NO_OUTCOMES, VitalState
from queenright.health.vitals.waiting import clear_wait
from queenright.runtime.events import AgentEvent


def enter_incarnation(v: VitalState, incarnation_id: str, at: float) -> bool:
    """Begin another incarnation. Return False if the event is a late event of the previous incarnation."""
    if incarnation_id == v._previous_incarnation:
        return False
    if v.incarnation_id:
        _begin_incarnation(v, at)
    v._previous_incarnation = v.incarnation_id
    v.incarnation_id = incarnation_id
    return True


def _begin_incarnation(v: VitalState, at: float) -> None:
    v.incarnation_started = at
    v.last_heartbeat = None
    v.beat = None
    v.heartbeat_late = False
    _clear_open_calls(v)
    reopen_session(v, at)


def reopen_session(v: VitalState, at: float) -> None:
    """Start another execution in the same session."""
    v.incarnation_count += 1
    if v.status is not WorkerStatus.UNKNOWN:
        # A new process reconnects to its servers. A worker that was only presumed dead does not.
        v.mcp_servers = ()
    v.status = WorkerStatus.ACTIVE
    v.ended_at = None
    v.refused_input = ""
    v.has_new_start = v.outlived_termination = v.withdrawal_due = False
    clear_wait(v)
    v.clock_base = max(v.clock_base, at)
    begin_visit(v)
    v.consecutive_failures = 0
    v.llm_errors = 0
    v.limit_due = None
    v.streak = 0
    v.stale_calls = v.fruitless = v.polls = v.rereads = 0
    v.idle_turns = v.calls_since_gain = v.tokens_since_gain = 0
    v.refusals = ()
    end_failed_calls(v)
    v.token_spike = 0.0
    v._outcomes = NO_OUTCOMES
    v.error_rate_high = False
    v.output = None
    v.resources = ()
    v.cut_answers = NOT_CUT
    v.breakers = v.breakers.without_process_breakers()
    if v.calls is not None:
        v.calls.end_repeats()


def undo_termination(v: VitalState, at: float) -> None:
    """
    Monitor the worker again, because it continues after its termination. The counts of detectors are kept.
    """
    has_failed_recovery = v.has_failed_recovery
    v.incarnation_count += 1
    if has_failed_recovery:
        v._failed_incarnation = v.incarnation_count
    v.status = WorkerStatus.ACTIVE
    v.ended_at = None
    v.outlived_termination = v.withdrawal_due = True
    v.clock_base = max(v.clock_base, at)


def end_session(v: VitalState, status: WorkerStatus, at: float) -> None:
    """Record the end of the session. A later report does not change a termination."""
    if v.status is WorkerStatus.TERMINATED:
        return
    v.status = status
    v.outlived_termination = v.withdrawal_due = False
    v.ended_at = max(at, v.last_activity)
    v.last_activity = v.ended_at
    _clear_open_calls(v)
    clear_wait(v)


def _clear_open_calls(v: VitalState) -> None:
    v.open_tools = None
    v.llm_open = 0


def is_of_earlier_incarnation(v: VitalState, event: AgentEvent, at: float) -> bool:
    """
    Return whether an end that names no incarnation is older than the current incarnation.

    If the end names its incarnation, its time is ignored. In a late batch, the start may have the time of its
    arrival, and the end that of the sender's clock.
    """
    return bool(v.incarnation_id) and not event.incarnation_id and at < v.incarnation_started


def is_of_current_incarnation(v: VitalState, incarnation: str) -> bool:
    """Return whether an event concerns the current incarnation: it names it, or names none."""
    if not v.incarnation_id:
        v.incarnation_id = incarnation
    return not incarnation or incarnation == v.incarnation_id
