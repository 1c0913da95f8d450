"""The timeline of a session."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from queenright import api
from queenright.health.service import AgentNotFoundError
from queenright.health.session_log import latest_session
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Limit
from queenright.server.routes.params import AgentId, SessionQuery
from queenright.server.service import Service
from queenright.server.views.session_steps import read_starts, read_steps, with_open_work

router = APIRouter(prefix="/api", tags=["health"])

_NO_EVENT = "There is no such worker, session or step."


@router.get("/agents/{agent_id:agent}/steps", **operation(errors={404: _NO_EVENT}))
async def list_session_steps(
    service: ServiceDep,
    agent_id: AgentId,
    session_id: SessionQuery = None,
    after: Annotated[
        str | None, Query(max_length=256, description="Only steps that ended after it: `last` of a page.")
    ] = None,
    before: Annotated[
        str | None, Query(max_length=256, description="Only steps that ended before it: `first` of a page.")
    ] = None,
    limit: Limit = 200,
) -> api.Steps:
    """
    List what a worker did in a session and what happened to it: turns, tool calls, waits, findings, tickets.

    The newest steps by default, in order. Work in progress is in `open`, with the time at which it stalls.
    """
    session = await find_session(service, agent_id, session_id)
    found, starts = await service.store.read(
        lambda conn: (
            read_steps(conn, agent_id, session, after=after, before=before, limit=limit),
            read_starts(conn, agent_id, session),
        )
    )
    worker = service.monitor.get(agent_id, session)
    if worker is None:
        if not found.items and after is None and before is None:
            raise AgentNotFoundError(agent_id, session_id)
        return found
    return with_open_work(found, worker, service.settings.health_monitoring, starts)


async def find_session(service: Service, agent_id: str, session_id: str | None) -> str:
    """
    Return the session of a request; by default the worker's newest.

    Raises:
        AgentNotFoundError: The worker is unknown.
    """
    if session_id is not None:
        return session_id
    worker = service.monitor.get(agent_id)
    if worker is not None:
        return worker.vitals.session_id
    found = await service.store.read(lambda conn: latest_session(conn, agent_id))
    if found is None:
        raise AgentNotFoundError(agent_id)
    return found
