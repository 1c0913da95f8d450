"""Events as text lines, for the feed and for one worker's stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queenright.api.event_text import describe_event, has_feed_line
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
    """Return an event as a line of the feed; None if it has no line there."""
    if event.type not in FEED_TYPES or not has_feed_line(event.type, event.data):
        return None
    kind, text = describe_event(event.type, event.agent_id, event.data)
    if event.type == "worker_escalation_ticket" and kind == "ticket":
        kind = str(event.data["ticket"]["severity"])
    return EventLine(clock_time(event.time), kind, clip(text, _MAX_LENGTH))


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
        case "agent_renamed" if "former_agent_id" in data:
            former = strip_control(data["former_agent_id"]), strip_control(data["former_session_id"])
            return "info", "was {}, session {}".format(*former)
        case "agent_renamed":
            return (
                "info",
                f"renamed to {strip_control(data['agent_id'])}, session {strip_control(data['session_id'])}",
            )
        case "execution_started":
            return "act", f"session {event.session_id} started"
        case "execution_completed":
            return "healthy", f"session {event.session_id} completed"
        case "execution_failed" if data.get("error_type") == "input_refused":
            return "cancelled", f"session {event.session_id}: the input was refused. {error}"
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
