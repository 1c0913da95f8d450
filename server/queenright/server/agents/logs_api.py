"""Logs of loaded agents over HTTP: runs, stays in nodes and steps, newest first."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query

from queenright.api import loaded as api
from queenright.runtime.storage.files import lines_before
from queenright.server.agents.manager import AgentSlot
from queenright.server.agents.requests import (
    GraphId,
    NodeId,
    OfGraph,
    graph_of,
    masked,
    node_of,
    on_disk,
    seen_in,
    state_of,
)
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, page, place_of
from queenright.server.routes.params import AgentId, one_of
from queenright.server.service import Service

Level = Annotated[
    api.LogLevel,
    one_of(api.LogLevel),
    Query(description="What is logged: a row each run, each stay in a node, or each step of a model."),
]
NodeLevel = Annotated[
    api.NodeLogLevel,
    one_of(api.NodeLogLevel),
    Query(description="A row each stay in the node, or each step of its model."),
]
OfSession = Annotated[
    str | None, Query(description="Of which session; without, of the newest one, and runs of all.")
]


def log_routes(service: Service) -> APIRouter:
    """Return the routes; the longer first, as an agent's name may hold anything."""
    router, agents = APIRouter(), service.agents

    @router.get(
        "/api/agents/{agent_id:agent}/graphs/{graph_id}/nodes/{node_id}/logs",
        **operation("list_node_logs", api.LogPage, errors=(404, 409)),
    )
    async def node_logs(
        agent_id: AgentId,
        graph_id: GraphId,
        node_id: NodeId,
        level: NodeLevel = "visits",
        session_id: OfSession = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> api.LogPage:
        """What a node did in a session, newest first: each stay in it, or each step of its model."""
        slot = seen_in(service, agents.get(agent_id), graph_id)
        node = node_of(graph_of(slot, graph_id), node_id)
        return await _logs(slot, graph_id, level, session_id, node.id, limit, cursor)

    @router.get(
        "/api/agents/{agent_id:agent}/logs",
        **operation("list_agent_logs", api.LogPage, errors=(404, 409)),
    )
    async def logs(
        agent_id: AgentId,
        level: Level = "executions",
        session_id: OfSession = None,
        graph_id: OfGraph = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> api.LogPage:
        """What a loaded agent did, newest first: its runs, or what happened inside of a session."""
        slot = agents.get(agent_id)
        graph = graph_of(slot, graph_id or slot.graph_id)
        return await _logs(slot, graph.id, level, session_id, None, limit, cursor)

    return router


async def _logs(
    slot: AgentSlot,
    graph_id: str,
    level: str,
    session_id: str | None,
    node_id: str | None,
    limit: int,
    cursor: str | None,
) -> api.LogPage:
    # A file of lines only grows: the byte that a line begins at stays its place.
    place = place_of(cursor, "rows", str, str, int)
    before = None
    if place is not None:
        session_id = session_id or place[0] or None
        before = place[2] if place[1] == level else None

    def read() -> tuple[str | None, list[tuple[int, dict[str, Any]]]]:
        path, session = _file(slot, graph_id, level, session_id)
        if path is None:
            return session, []
        found = (
            (at, row)
            for at, row in lines_before(path, before)
            if (node_id is None or row.get("node_id") == node_id)
            and (level != "executions" or session_id in (None, row.get("session_id")))
        )
        return session, list(islice(found, limit + 1))

    session, found = await on_disk(slot.runtime, read)
    return await page(
        api.LogPage,
        "rows",
        found,
        limit,
        row=lambda one: _masked(one[1]),
        place=lambda one: (session or "", level, one[0]),
        level=level,
        session_id=session,
    )


def _file(
    slot: AgentSlot, graph_id: str, level: str, session_id: str | None
) -> tuple[Path | None, str | None]:
    """
    Return the file of a log, and whose session it is. Blocks.

    Raises:
        SessionNotFound, InvalidSessionIdError, UnusableFileError: as ``SessionStore.read_state``.
    """
    store = slot.runtime.session_store(graph_id)
    if level == "executions":
        if session_id is not None:
            state_of(slot, graph_id, session_id)
        return store.base / "runtime_logs" / "executions.jsonl", session_id
    if session_id is None:
        newest = next(iter(store.list_sessions(limit=1)), None)
        if newest is None:
            return None, None
        session_id = newest.session_id
    _, session, _ = state_of(slot, graph_id, session_id)
    name = "details.jsonl" if level == "visits" else "tool_logs.jsonl"
    return session.logs / name, session_id


def _masked(row: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = masked(row)
    return shown
