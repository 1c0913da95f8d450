"""Events: the one format in which information travels inside Queenright, from telemetry to ticket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from queenright.instrumentation.identity import new_id

Clock = Callable[[], float]
"""Returns seconds since the epoch, UTC. ``time.time`` in production, a fake in tests."""


class EventType(StrEnum):
    """The type of an event. The values go over the wire."""

    # Activity of workers.
    EXECUTION_STARTED = "execution_started"
    EXECUTION_COMPLETED = "execution_completed"
    EXECUTION_FAILED = "execution_failed"
    EXECUTION_PAUSED = "execution_paused"
    EXECUTION_RESUMED = "execution_resumed"
    AGENT_RENAMED = "agent_renamed"
    NODE_LOOP_STARTED = "node_loop_started"
    NODE_LOOP_COMPLETED = "node_loop_completed"
    EDGE_TRAVERSED = "edge_traversed"
    GOAL_PROGRESS = "goal_progress"
    CLIENT_OUTPUT_DELTA = "client_output_delta"
    CLIENT_INPUT_REQUESTED = "client_input_requested"
    CLIENT_INPUT_RECEIVED = "client_input_received"
    STEP_STARTED = "step_started"
    STEP_COMPLETED = "step_completed"
    LLM_CALL_STARTED = "llm_call_started"
    LLM_TEXT_DELTA = "llm_text_delta"
    LLM_CALL_COMPLETED = "llm_call_completed"
    TOOL_CALL_STARTED = "tool_call_started"
    TOOL_CALL_COMPLETED = "tool_call_completed"
    WORKER_WAITING = "worker_waiting"
    CHECKPOINT_SAVED = "checkpoint_saved"
    OUTPUT_REPORTED = "output_reported"
    RESOURCE_REPORTED = "resource_reported"
    BREAKER_REPORTED = "breaker_reported"
    AGENT_HEARTBEAT = "agent_heartbeat"
    MCP_SERVER_CHANGED = "mcp_server_changed"

    # Observations of the health layer.
    FINDING_OPENED = "finding_opened"
    FINDING_CLEARED = "finding_cleared"
    HEALTH_STATE_CHANGED = "health_state_changed"

    # Decisions of judge, queen and operator.
    JUDGE_CHECKED = "judge_checked"
    WORKER_ESCALATION_TICKET = "worker_escalation_ticket"
    QUEEN_INTERVENTION_REQUESTED = "queen_intervention_requested"
    TICKET_TRIAGED = "ticket_triaged"
    TICKET_ACKNOWLEDGED = "ticket_acknowledged"
    TICKET_UNACKNOWLEDGED = "ticket_unacknowledged"
    TICKET_REESCALATED = "ticket_reescalated"
    TICKET_RESOLVED = "ticket_resolved"
    INCIDENT_CLOSED = "incident_closed"
    OPERATOR_ASKED = "operator_asked"
    QUEEN_ANSWER_DELTA = "queen_answer_delta"
    QUEEN_ANSWERED = "queen_answered"
    NOTIFICATION_DELIVERED = "notification_delivered"
    NOTIFICATION_FAILED = "notification_failed"
    RECEIVER_NOTIFIED = "receiver_notified"

    # Operations of people on agents inside the service, and changes to access tokens.
    AGENT_OPERATED = "agent_operated"
    TOKENS_CHANGED = "tokens_changed"

    # Interventions.
    NUDGE_SENT = "nudge_sent"
    ESCALATION_TRIGGERED = "escalation_triggered"
    ESCALATION_DECIDED = "escalation_decided"
    TERMINATION_REQUESTED = "termination_requested"
    TERMINATION_DECIDED = "termination_decided"
    AGENT_TERMINATED = "agent_terminated"
    RECOVERY_INITIATED = "recovery_initiated"
    RECOVERY_COMPLETED = "recovery_completed"
    RECOVERY_FAILED = "recovery_failed"
    CIRCUIT_BREAKER_STATE_CHANGED = "circuit_breaker_state_changed"
    INTERVENTION_RECORDED = "intervention_recorded"
    EMERGENCY_STOP_CHANGED = "emergency_stop_changed"


ALERT_CLASS: Final[frozenset[EventType]] = frozenset(
    {
        EventType.HEALTH_STATE_CHANGED,
        EventType.WORKER_ESCALATION_TICKET,
        EventType.QUEEN_INTERVENTION_REQUESTED,
        EventType.TICKET_TRIAGED,
        EventType.TICKET_ACKNOWLEDGED,
        EventType.TICKET_UNACKNOWLEDGED,
        EventType.TICKET_REESCALATED,
        EventType.TICKET_RESOLVED,
        EventType.INCIDENT_CLOSED,
        EventType.OPERATOR_ASKED,
        EventType.QUEEN_ANSWERED,
        EventType.AGENT_OPERATED,
        EventType.TOKENS_CHANGED,
        EventType.NOTIFICATION_DELIVERED,
        EventType.NOTIFICATION_FAILED,
        EventType.NUDGE_SENT,
        EventType.ESCALATION_TRIGGERED,
        EventType.ESCALATION_DECIDED,
        EventType.TERMINATION_REQUESTED,
        EventType.TERMINATION_DECIDED,
        EventType.AGENT_TERMINATED,
        EventType.RECOVERY_INITIATED,
        EventType.RECOVERY_COMPLETED,
        EventType.RECOVERY_FAILED,
        EventType.CIRCUIT_BREAKER_STATE_CHANGED,
        EventType.INTERVENTION_RECORDED,
        EventType.EMERGENCY_STOP_CHANGED,
    }
)
"""Events that are never dropped, and are stored durably before anyone acts on them."""

LATEST_TIME: Final = 253_402_300_799.0
"""The end of the year 9999, in epoch seconds."""

RECOVERY_EVENTS: Final = frozenset(
    {EventType.RECOVERY_INITIATED, EventType.RECOVERY_COMPLETED, EventType.RECOVERY_FAILED}
)

TRANSIENT: Final[frozenset[EventType]] = frozenset(
    {EventType.CLIENT_OUTPUT_DELTA, EventType.LLM_TEXT_DELTA, EventType.QUEEN_ANSWER_DELTA}
)
"""Events that are not necessarily in the log: pieces of a text."""


@dataclass(slots=True, kw_only=True)
class AgentEvent:
    """
    One event of, or about, one worker.

    Treat it as immutable: all subscribers share it. (It is not frozen because a frozen dataclass costs
    three times as much to create, and one is created for every span.)

    ``time`` is in seconds since the epoch, UTC, on the clock of the event's author. ``data`` holds JSON
    values only; ``docs/events.md`` lists its keys by type.
    """

    type: EventType
    time: float
    agent_id: str = ""
    session_id: str = ""
    incarnation_id: str = ""
    graph_id: str = ""
    stream_id: str = ""
    node_id: str = ""
    execution_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=new_id)

    def to_dict(self) -> dict[str, Any]:
        """Return the wire format."""
        return {
            "id": self.id,
            "type": self.type.value,
            "time": self.time,
            "agent_id": self.agent_id,
            "session_id": self.session_id,
            "incarnation_id": self.incarnation_id,
            "graph_id": self.graph_id,
            "stream_id": self.stream_id,
            "node_id": self.node_id,
            "execution_id": self.execution_id,
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "data": dict(self.data),
        }
