"""Events as text lines, for the feed and for one worker's stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queenright.tui.formatting import clip, clock_time, short_number, strip_control
from queenright.tui.models import FleetEvent

_MAX_LENGTH: Final = 300
"""Maximum length of a line."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """Time of day, kind (a key of ``styles``), and text of an event."""

    time: str
    kind: str
    text: str


FEED_TYPES: Final = (
    "health_state_changed",
    "worker_escalation_ticket",
    "queen_intervention_requested",
    "ticket_triaged",
    "ticket_acknowledged",
    "ticket_unacknowledged",
    "ticket_reescalated",
    "ticket_resolved",
    "operator_asked",
    "queen_answered",
    "nudge_sent",
    "escalation_triggered",
    "escalation_decided",
    "termination_requested",
    "termination_decided",
    "agent_terminated",
    "recovery_initiated",
    "recovery_completed",
    "recovery_failed",
    "circuit_breaker_state_changed",
    "intervention_recorded",
    "emergency_stop_changed",
    "agent_operated",
    "tokens_changed",
    "notification_failed",
)
"""Event types in the feed of the fleet."""

WORK_TYPES: Final = (
    "agent_renamed",
    "execution_started",
    "execution_completed",
    "execution_failed",
    "execution_paused",
    "client_input_requested",
    "step_completed",
    "tool_call_completed",
    "llm_call_completed",
)
"""Event types that are a worker's activity."""


def feed_line(event: FleetEvent) -> EventLine | None:
    """Return an event as a line of the feed; None if it has no line there, or lacks what its line needs."""
    try:
        entry = _feed_text(event)
    except (LookupError, TypeError, AttributeError):
        entry = None
    if entry is None:
        return None
    kind, text = entry
    return EventLine(clock_time(event.time), kind, clip(text, _MAX_LENGTH))


def _feed_text(event: FleetEvent) -> tuple[str, str] | None:
    data, agent = event.data, event.agent_id
    match event.type:
        case "health_state_changed":
            return str(data["to"]), f"{agent}: {data['from']} → {data['to']}. {data.get('reason') or ''}"
        case "worker_escalation_ticket":
            ticket = data["ticket"]
            kind = str(ticket["kind"]).replace("_", " ")
            what = f"{ticket['severity']} ticket on {ticket['worker_agent_id']}, {kind}"
            return str(ticket["severity"]), f"judge: {what} ({data['change']})"
        case "queen_intervention_requested":
            return str(data["severity"]), f"queen → operator: {data['analysis']}"
        case "ticket_triaged":
            dismissed = data["decision"] == "dismiss"
            return "queen", f"queen: {data['reason'] if dismissed else data['decision']}"
        case "ticket_acknowledged":
            return "act", f"{agent}: ticket acknowledged by {data['by']}"
        case "ticket_unacknowledged":
            return "act", f"{agent}: acknowledgement withdrawn by {data['by']}"
        case "ticket_reescalated":
            why = f"ticket not acknowledged; reminder {data['reminder']}"
            if data.get("is_request"):
                why = "an operator must decide or act"
            return str(data["severity"]), f"{agent}: {why}"
        case "ticket_resolved":
            status = str(data["status"]).replace("_", " ")
            return "healthy", f"{agent}: ticket {status}. {data.get('reason') or ''}"
        case "operator_asked":
            return "act", f"{data['by']} → queen, about {data['agent_id']}: {data['text']}"
        case "queen_answered":
            return "queen", f"queen, about {data['agent_id']}: {data['text']}"
        case "notification_failed":
            return "failing", f"notification about {agent} failed: {data.get('error') or ''}"
    return _action_text(event)


def _action_text(event: FleetEvent) -> tuple[str, str] | None:
    data, agent = event.data, event.agent_id
    match event.type:
        case "nudge_sent":
            nudge = f"nudge {data['attempt']}" if data["attempt"] else "nudge"
            return "act", f"{agent}: {nudge} by {data['by']}. {data.get('message') or ''}"
        case "escalation_triggered":
            return "act", f"{agent}: escalated to the orchestrator. {data['reason']}"
        case "escalation_decided":
            what = str(data.get("decision") or data["status"]).replace("_", " ")
            return "act", f"{agent}: {what}, by {data['by']}. {data.get('reason') or ''}"
        case "termination_requested":
            return "high", f"{agent}: {data['by']} requests termination. {data['reason']}"
        case "termination_decided":
            return "act", f"{agent}: termination {data['status']}. {data.get('reason') or ''}"
        case "agent_terminated":
            return "terminated", f"{agent}: terminated by {data['by']}. {data['reason']}"
        case "recovery_initiated":
            return "act", f"{agent}: recovering task {data['task_id']}, attempt {data['attempt']}"
        case "recovery_completed":
            return "healthy", f"{agent}: task {data['task_id']} recovered"
        case "recovery_failed":
            return "failing", f"{agent}: recovery of task {data['task_id']} failed. {data['reason']}"
        case "circuit_breaker_state_changed":
            to = str(data["to"])
            return to, f"breaker {data['name']}: {data['from']} → {to}. {data.get('reason') or ''}"
        case "intervention_recorded" if data["outcome"] not in ("done", "queued", "started"):
            outcome = str(data["outcome"]).replace("_", " ")
            return "act", f"{data['agent_id']}: {data['kind']} {outcome}. {data.get('detail') or ''}"
        case "emergency_stop_changed":
            state = "on, no worker is acted on" if data["on"] else "off"
            return "high", f"emergency stop {state}, by {data['by']}. {data['reason']}"
        case "agent_operated":
            return "act", f"{agent}: {str(data['what']).replace('_', ' ')}, by {data['by']}"
        case "tokens_changed":
            added = [f"{one['name']} added" for one in data["came"]]
            removed = [f"{one['name']}: {one['why']}" for one in data["went"]]
            return "act", f"tokens: {'; '.join(added + removed)}"
    return None


def work_line(event: FleetEvent, previous_node: str = "") -> EventLine | None:
    """
    Return an event as a line of one worker's stream; None if it has no line there.

    Args:
        event: The event.
        previous_node: Node of the previous line, which is not repeated.
    """
    try:
        entry = _work_text(event)
    except (LookupError, TypeError, AttributeError, ValueError):
        entry = None
    if entry is None:
        return feed_line(event)
    kind, text = entry
    node = f"{event.node_id}: " if event.node_id not in ("", previous_node) else ""
    return EventLine(clock_time(event.time), kind, clip(node + text, _MAX_LENGTH))


def _work_text(event: FleetEvent) -> tuple[str, str] | None:
    data = event.data
    error = data.get("error") or data.get("error_type") or ""
    match event.type:
        case "step_completed":
            verdict = str(data.get("verdict") or ("error" if error else "done"))
            kind = {"ACCEPT": "healthy", "CONTINUE": "info"}.get(verdict, "degraded")
            index = "" if data.get("index") is None else f" {data['index']}"
            return kind, f"step{index} {verdict}. {error or data.get('text') or ''}"
        case "tool_call_started":
            return "info", f"{data.get('tool')} …"
        case "tool_call_completed":
            outcome = str(data.get("outcome") or "ok")
            took = "" if data.get("duration") is None else f" in {data['duration']:.1f} s"
            return ("info" if outcome == "ok" else "failing"), f"{data.get('tool')} {outcome}{took} {error}"
        case "llm_call_completed":
            tokens = short_number((data.get("input_tokens") or 0) + (data.get("output_tokens") or 0))
            if error:
                return "failing", f"{data.get('model') or 'model'} failed: {error}"
            return "info", f"{data.get('model') or 'model'} answered, {tokens} tokens"
        case "agent_renamed":
            return (
                "info",
                f"renamed to {strip_control(data['agent_id'])}, session {strip_control(data['session_id'])}",
            )
        case "execution_started":
            return "act", f"session {event.session_id} started"
        case "execution_completed":
            return "healthy", f"session {event.session_id} completed"
        case "execution_failed":
            return "failing", f"session {event.session_id} failed. {error}"
        case "execution_paused":
            return "act", f"session {event.session_id} paused"
        case "client_input_requested":
            return "act", f"waits for input: {strip_control(data.get('question') or '')}".removesuffix(": ")
        case "worker_waiting" if data.get("reason"):
            question = f": {strip_control(data['question'])}" if data.get("question") else ""
            return "info", f"waiting: {str(data['reason']).replace('_', ' ')}{question}"
        case "checkpoint_saved":
            return "info", "checkpoint saved"
    return None
