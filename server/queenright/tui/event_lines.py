"""Events as text lines, for the feed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queenright.api.event_text import describe_event, has_feed_line
from queenright.api.events import Event
from queenright.tui.formatting import clip, format_clock_time

_MAX_LENGTH: Final = 300
"""Maximum length of a line."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """Time of day, kind (a key of ``styles``), and text of an event."""

    time: str
    kind: str
    text: str


TICKET_TYPES: Final = (
    "worker_escalation_ticket",
    "queen_intervention_requested",
    "ticket_triaged",
    "ticket_acknowledged",
    "ticket_unacknowledged",
    "ticket_reescalated",
    "ticket_resolved",
    "incident_closed",
)
"""Event types that change a ticket."""

FEED_TYPES: Final = (
    "health_state_changed",
    *TICKET_TYPES,
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


def make_event_line(event: Event) -> EventLine | None:
    """Return an event as a line of the feed; None if it has no line there."""
    if event.type not in FEED_TYPES or not has_feed_line(event.type, event.data):
        return None
    kind, text = describe_event(event.type, event.agent_id, event.data)
    if event.type == "worker_escalation_ticket" and kind == "ticket":
        kind = str(event.data["ticket"]["severity"])
    return EventLine(format_clock_time(event.time), kind, clip(text, _MAX_LENGTH))
