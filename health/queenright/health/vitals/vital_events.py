"""
The handlers that apply events to vital signs, one for each event type.

Handlers of work events are in ``step_verdicts``, ``llm_calls`` and ``tool_calls``, and those of waits in
``waiting_events``.

A worker's own events are separate from the events of the health layer about the worker. Only the former are
activity and name the incarnation that sent them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, Final

from queenright.health.vitals.activity import record_activity, record_start
from queenright.health.vitals.calls import digest
from queenright.health.vitals.incarnation import (
    end_session,
    is_of_current_incarnation,
    is_of_earlier_incarnation,
    reopen_session,
)
from queenright.health.vitals.llm_calls import on_llm_completed, on_llm_started, on_text_delta
from queenright.health.vitals.progress import begin_visit, record_accepted_work, record_progress
from queenright.health.vitals.resource_limits import add_report
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.step_verdicts import on_step_completed, on_step_started
from queenright.health.vitals.tool_calls import on_tool_completed, on_tool_started
from queenright.health.vitals.vital_facts import (
    EVIDENCE_LIMIT,
    PROCESS_PREFIX,
    HeartbeatFields,
    Output,
    apply_mcp_report,
    clean_text,
    cut_to_tail,
    parse_count,
    parse_seconds,
)
from queenright.health.vitals.vital_state import Handler, VitalState
from queenright.health.vitals.waiting_events import (
    on_input_received,
    on_input_requested,
    on_paused,
    on_resumed,
    on_waiting,
)
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, EventType

_INPUT_REFUSED: Final = "input_refused"
"""The error type of a run that did not start because its input is invalid."""
_CANCEL_WORDS: Final = frozenset(
    {"cancelled", "canceled", "cancellederror", "keyboardinterrupt", _INPUT_REFUSED}
)

TERMINATED: Final = "terminated"
"""The error type of a run that Queenright terminated."""


def is_cancelled_run(data: Mapping[str, Any]) -> bool:
    """Return whether ``data`` of an ``execution_failed`` event reports a cancelled run."""
    return str(data.get("error_type", "")).lower() in _CANCEL_WORDS


def is_settled_by_person(data: Mapping[str, Any]) -> bool:
    """Return whether ``data`` of a ``ticket_resolved`` event reports that a person resolved the ticket."""
    return data.get("status") == "resolved" and bool(data.get("by"))


# -- events of a worker -------------------------------------------------------------------------------


def _on_execution_started(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    if v.ended_at is not None and at > v.ended_at:
        reopen_session(v, at)
    elif v.status is WorkerStatus.TERMINATED and at > v.incarnation_started:
        v.has_new_start = True
    record_start(v, at)
    if event.trace_id:
        v.last_trace_id, v.last_span_id = event.trace_id, event.span_id
    if data.get("framework"):
        v.framework = sys.intern(str(data["framework"]))
    note_origin(v, data)
    v.heartbeat_interval = parse_seconds(data.get("heartbeat_interval")) or v.heartbeat_interval
    if data.get("task_id"):
        v.task_id = clean_text(data["task_id"]) or v.task_id
    v.repeatable = bool(data.get("repeatable"))
    if data.get("control"):
        v.fetches = True
    v.is_foreign = data.get("start_records") is False
    if data.get("start_records"):
        v.start_records = True
        v.metrics_served = bool(data.get("metrics_served"))


def note_origin(v: VitalState, data: Mapping[str, Any]) -> None:
    """Record the owner and the repository that an event names, if any."""
    # The strings are interned, so that the workers of one owner share them.
    if owner := clean_text(data.get("owner")):
        v.owner = sys.intern(owner)
    if repository := clean_text(data.get("repository")):
        v.repository = sys.intern(repository)


def _on_execution_completed(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    # A terminated worker may report completion when its process exits, but its work is not complete.
    if not is_of_earlier_incarnation(v, event, at) and v.status is not WorkerStatus.TERMINATED:
        end_session(v, WorkerStatus.COMPLETED, at)
        v.consecutive_failures = 0
        v.recovery_failed = ""


def _on_execution_failed(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    if is_of_earlier_incarnation(v, event, at) or v.status is WorkerStatus.TERMINATED:
        return
    if is_cancelled_run(data):
        end_session(v, WorkerStatus.CANCELLED, at)
        if data.get("error_type") == _INPUT_REFUSED:
            v.refused_input = cut_to_tail(data.get("error") or "it is not valid")
        v.recovery_failed = ""  # the run was cancelled, so there is nothing to recover
        return
    if data.get("error_type") == TERMINATED:
        end_session(v, WorkerStatus.TERMINATED, at)  # the termination event follows
        return
    v.note_error(data)
    v.consecutive_failures += 1
    end_session(v, WorkerStatus.FAILED, at)


def _on_terminated(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    if is_of_current_incarnation(v, event.incarnation_id):
        end_session(v, WorkerStatus.TERMINATED, at)


def _on_visit(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    if record_start(v, at):
        begin_visit(v)
        if event.node_id:
            v.node_id = sys.intern(event.node_id)


def _on_activity(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    record_activity(v, at)


def _on_checkpoint(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    if record_activity(v, at):
        v.last_checkpoint = v.saved_from = max(at, v.last_checkpoint or at)
        record_accepted_work(v, at)


def _on_heartbeat(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply a heartbeat. Invalid fields are ignored. A heartbeat is never progress."""
    if v.ended_at is not None and at > v.ended_at and (v.status is WorkerStatus.UNKNOWN or v.has_new_start):
        reopen_session(v, at)  # the worker was presumed dead
    if v.ended_at is not None:
        return
    last = max(v.last_activity, v.clock_base, v.last_heartbeat or 0.0)
    if v.waiting is None and (v.last_heartbeat is not None or v.heartbeat_interval is not None):
        v.heartbeat_late = at >= last + v.settings.heartbeat.limit(v.heartbeat_interval)
    v.last_heartbeat = max(at, v.last_heartbeat or at)
    v.heartbeat_interval = parse_seconds(data.get("interval")) or v.heartbeat_interval
    if data.get("task_id"):
        v.task_id = clean_text(data["task_id"]) or v.task_id
    beat = HeartbeatFields(
        phase=clean_text(data.get("phase")),
        last_tool_call=parse_seconds(data.get("last_tool_call")),
        token_count=parse_count(data.get("token_count")),
        error_count=parse_count(data.get("error_count")),
        progress_indicator=clean_text(data.get("progress_indicator")),
    )
    if beat.token_count and (v.beat is None or beat.token_count != v.beat.token_count):
        v.tokens_at = v.tokens_from = at
    v.beat = beat


def _on_output(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply reported output counts. Changed counts are progress."""
    if not record_activity(v, at):
        return
    files, passes, failures = (
        parse_count(data.get(name)) for name in ("files_changed", "tests_passed", "tests_failed")
    )
    output, previous = Output(files, passes, failures, since=at, reports=1), v.output
    if not any(count is not None for count in output.counts):
        return
    if previous is not None and previous.counts == output.counts:
        v.output = previous._replace(reports=previous.reports + 1)
        return
    v.output = output
    if v.is_new(digest("output", str(output.counts))) and previous is not None:
        record_progress(v, at)


def _on_resource(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply a resource report. It is not activity."""
    if v.ended_at is None:
        v.resources = add_report(v.resources, data, at)


def _on_process_breaker(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply a change of a circuit breaker in the worker's own process."""
    name = clean_name(clean_text(data.get("name")), 120)
    if v.ended_at is None and name:
        _on_breaker(v, event, {"name": f"{PROCESS_PREFIX}{name}", "to": data.get("to")}, at)


def _on_mcp_server(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply a report about an MCP server. It is not activity."""
    if v.ended_at is None or v.status is WorkerStatus.UNKNOWN:
        v.mcp_servers = apply_mcp_report(v.mcp_servers, data, at)


# -- events about a worker ----------------------------------------------------------------------------


def _on_breaker(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Apply a change of a circuit breaker."""
    if not v.breakers:
        v.breakers_since = at
    v.breakers = v.breakers.after(data)


def _on_recovery_failed(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Record that recovery was abandoned. A failed attempt that is retried changes nothing."""
    if not data.get("exhausted") or v.status in (WorkerStatus.COMPLETED, WorkerStatus.CANCELLED):
        return
    v.recovery_failed = redact(str(data.get("reason") or "no reason was given"), EVIDENCE_LIMIT)
    v.recovery_failed_at = at
    v._failed_incarnation = v.incarnation_count
    if v.ended_at is None and v.only_heartbeats and v.last_heartbeat is None:
        end_session(v, WorkerStatus.FAILED, at)  # nothing is known except the failure of its recovery


def _on_recovered(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    v.recovered_at = at
    v.only_heartbeats = False  # it was started to make progress, so its silence may be a stall
    if not v.incarnation_id:
        v.incarnation_id = clean_text(data.get("new_incarnation_id"))


def _on_ticket_resolved(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Clear a failed recovery or a dead worker that an operator has resolved."""
    if not is_settled_by_person(data):
        return
    v.recovery_failed = ""
    if data.get("worker_dead") and v.ended_at is None and is_of_current_incarnation(v, event.incarnation_id):
        end_session(v, WorkerStatus.UNKNOWN, at)


WORK_HANDLERS: Final[dict[EventType, Handler]] = {
    EventType.STEP_STARTED: on_step_started,
    EventType.STEP_COMPLETED: on_step_completed,
    EventType.LLM_CALL_STARTED: on_llm_started,
    EventType.LLM_TEXT_DELTA: on_text_delta,
    EventType.LLM_CALL_COMPLETED: on_llm_completed,
    EventType.TOOL_CALL_STARTED: on_tool_started,
    EventType.TOOL_CALL_COMPLETED: on_tool_completed,
}

_WORKER_EVENT_HANDLERS: Final[dict[EventType, Handler]] = {
    EventType.EXECUTION_STARTED: _on_execution_started,
    EventType.EXECUTION_COMPLETED: _on_execution_completed,
    EventType.EXECUTION_FAILED: _on_execution_failed,
    EventType.EXECUTION_PAUSED: on_paused,
    EventType.EXECUTION_RESUMED: on_resumed,
    EventType.NODE_LOOP_STARTED: _on_visit,
    EventType.NODE_LOOP_COMPLETED: _on_activity,
    EventType.EDGE_TRAVERSED: _on_activity,
    EventType.GOAL_PROGRESS: _on_activity,
    EventType.CLIENT_OUTPUT_DELTA: _on_activity,
    EventType.CLIENT_INPUT_REQUESTED: on_input_requested,
    EventType.CLIENT_INPUT_RECEIVED: on_input_received,
    EventType.WORKER_WAITING: on_waiting,
    EventType.CHECKPOINT_SAVED: _on_checkpoint,
    EventType.OUTPUT_REPORTED: _on_output,
    EventType.RESOURCE_REPORTED: _on_resource,
    EventType.BREAKER_REPORTED: _on_process_breaker,
    EventType.AGENT_HEARTBEAT: _on_heartbeat,
    EventType.MCP_SERVER_CHANGED: _on_mcp_server,
    **WORK_HANDLERS,
}
_SERVICE_EVENT_HANDLERS: Final[dict[EventType, Handler]] = {
    EventType.AGENT_TERMINATED: _on_terminated,
    EventType.CIRCUIT_BREAKER_STATE_CHANGED: _on_breaker,
    EventType.RECOVERY_FAILED: _on_recovery_failed,
    EventType.RECOVERY_COMPLETED: _on_recovered,
    EventType.TICKET_RESOLVED: _on_ticket_resolved,
}
HANDLERS: Final[dict[EventType, Handler]] = _WORKER_EVENT_HANDLERS | _SERVICE_EVENT_HANDLERS

_WORK_STARTS: Final = frozenset(
    {
        EventType.NODE_LOOP_STARTED,
        EventType.STEP_STARTED,
        EventType.LLM_CALL_STARTED,
        EventType.TOOL_CALL_STARTED,
    }
)
_WORK_ENDS: Final = frozenset(
    {EventType.STEP_COMPLETED, EventType.LLM_CALL_COMPLETED, EventType.TOOL_CALL_COMPLETED}
)


def find_work_start(event: AgentEvent) -> float | None:
    """Return when the step or call of an event began, in seconds since the epoch, or None if unknown."""
    if event.type in _WORK_STARTS:
        return event.time
    duration = event.data.get("duration") if event.type in _WORK_ENDS else None
    if isinstance(duration, int | float) and 0 <= duration < math.inf:
        return event.time - duration
    return None


WORKER_EVENTS: Final = frozenset(_WORKER_EVENT_HANDLERS)
"""Events that workers report."""

ABOUT_WORKERS: Final = frozenset(_SERVICE_EVENT_HANDLERS)
"""Events of the health layer that the monitor applies. It ignores all others."""
