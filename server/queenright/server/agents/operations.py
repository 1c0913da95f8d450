"""Events about actions of an operator or the queen on a loaded agent."""

from __future__ import annotations

from typing import Literal

from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, EventType

Action = Literal[
    "load",
    "unload",
    "trigger",
    "chat",
    "inject",
    "resume",
    "replay",
    "restore",
    "stop",
    "delete_session",
    "add_graph",
    "remove_graph",
    "switch_graph",
    "change_file",
    "reload",
]


def make_operation_event(
    action: Action,
    agent_id: str,
    *,
    at: float,
    by: str,
    graph_id: str = "",
    session_id: str | None = None,
    execution_id: str = "",
    detail: str = "",
) -> AgentEvent:
    """Return the event that records an action on an agent. Secrets are masked."""
    return AgentEvent(
        type=EventType.AGENT_OPERATED,
        time=at,
        agent_id=agent_id,
        session_id=session_id or "",
        graph_id=graph_id,
        execution_id=execution_id,
        data={"what": action, "by": redact(by, 100), "detail": redact(detail, 500)},
    )
