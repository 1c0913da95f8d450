"""Who did what with an agent that runs here: it is in the log, next to what the agent itself did."""

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
    Note what somebody did with an agent, once it is done.

    A log that cannot be written does not undo it, so that the answer is the same: it is said in the service's
    own log then.

    Args:
        service: Where it runs.
        request: What was asked; its token says who did it.
        what: What was done.
        agent_id: With which agent.
        by: The name that the caller gave.
        graph_id: With which of its graphs.
        session_id: In which session, if that is known.
        execution_id: Which run began or went on by it.
        detail: What else there is to say: a folder, a checkpoint, runs that were stopped.
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
            "that %s did %s with agent %r is not in the event log: %s",
            name,
            what,
            redact(agent_id, 200),
            redact(str(error)),
        )
