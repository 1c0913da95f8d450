"""Log what operators do with loaded agents, in the event log, next to the agents' own events."""

from __future__ import annotations

import logging
from typing import Literal

from fastapi import Request

from queenright.health.store import StoreError
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.access.caller import ANYBODY, who
from queenright.server.service import Service

_log = logging.getLogger(__name__)

What = Literal[
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
]


async def log_operator_action(
    service: Service,
    request: Request,
    what: What,
    agent_id: str,
    *,
    by: str = ANYBODY,
    graph_id: str = "",
    session_id: str | None = None,
    execution_id: str = "",
    detail: str = "",
) -> None:
    """
    Log an operator's action on an agent, after it was done.

    If the event log cannot be written, the action stands, and the service's own log says so.

    Args:
        service: Runs the agent.
        request: The request; its token identifies the operator.
        what: The action.
        agent_id: The agent.
        by: The name that the caller gave.
        graph_id: The graph, if the action was on one.
        session_id: The session, if it is known.
        execution_id: The run that was started or resumed.
        detail: More: a folder, a checkpoint, the runs that were stopped.
    """
    name = redact(who(request, by), 100)
    event = AgentEvent(
        type=EventType.AGENT_OPERATED,
        time=service.clock(),
        agent_id=agent_id,
        session_id=session_id or "",
        graph_id=graph_id,
        execution_id=execution_id,
        data={"what": what, "by": name, "detail": redact(detail, 500)},
    )
    try:
        await service.bus.publish(event)
    except StoreError as error:
        _log.error(
            "cannot log to the event log that %s did %s with agent %r: %s",
            name,
            what,
            redact(agent_id, 200),
            redact(str(error)),
        )
