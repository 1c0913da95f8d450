"""Routes for logs of loaded agents: runs, visits of nodes, and steps, newest first."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query

from queenright.api import loaded_agents as api
from queenright.runtime.storage.files import read_lines_before
from queenright.server.agents.manager import AgentSlot
from queenright.server.routes.loaded_agents.requests import (
    PREFIX,
    TAG,
    NodeDep,
    ReadableGraphDep,
    ReadableSlotDep,
    SessionGraphDep,
    SlotDep,
    mask_values,
    read_session,
    run_on_disk,
)
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import allow_word

# The longest paths come first, because an agent's name may contain slashes.
router = APIRouter(prefix=PREFIX, tags=[TAG])

Level = Annotated[
    api.LogLevel,
    allow_word(api.LogLevel),
    Query(description="One row per run, per visit of a node, or per step of a model."),
]
NodeLevel = Annotated[
    api.NodeLogLevel,
    allow_word(api.NodeLogLevel),
    Query(description="One row per visit of the node, or per step of its model."),
]
LogSessionQuery = Annotated[
    str | None,
    Query(description="Only this session; by default the newest session, or for runs all sessions."),
]


@router.get("/graphs/{graph_id}/nodes/{node_id}/logs", **operation(errors=(404, 409)))
async def list_node_logs(
    slot: ReadableSlotDep,
    graph: ReadableGraphDep,
    node: NodeDep,
    level: NodeLevel = "visits",
    session_id: LogSessionQuery = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.LogPage:
    """List the log of a node in a session, newest first: its visits, or the steps of its model."""
    return await _build_log_page(slot, graph.id, level, session_id, node.id, limit, cursor)


@router.get("/logs", **operation(errors=(404, 409)))
async def list_agent_logs(
    slot: SlotDep,
    graph: SessionGraphDep,
    level: Level = "executions",
    session_id: LogSessionQuery = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.LogPage:
    """List the log of a loaded agent, newest first: its runs, or the visits and steps of a session."""
    return await _build_log_page(slot, graph.id, level, session_id, None, limit, cursor)


async def _build_log_page(
    slot: AgentSlot,
    graph_id: str,
    level: str,
    session_id: str | None,
    node_id: str | None,
    limit: int,
    cursor: str | None,
) -> api.LogPage:
    # The file is append-only, so the offset of a line identifies it.
    position = decode_cursor(cursor, "rows", str, str, int)
    before = None
    if position is not None:
        session_id = session_id or position[0] or None
        before = position[2] if position[1] == level else None

    def read() -> tuple[str | None, list[tuple[int, dict[str, Any]]]]:
        path, session = _find_file(slot, graph_id, level, session_id)
        if path is None:
            return session, []
        rows = (
            (offset, row)
            for offset, row in read_lines_before(path, before)
            if (node_id is None or row.get("node_id") == node_id)
            and (level != "executions" or session_id in (None, row.get("session_id")))
        )
        return session, list(islice(rows, limit + 1))

    session, rows = await run_on_disk(slot.runtime, read)
    return await build_page(
        api.LogPage,
        "rows",
        rows,
        limit,
        row=lambda entry: mask_values(entry[1]),
        position=lambda entry: (session or "", level, entry[0]),
        level=level,
        session_id=session,
    )


def _find_file(
    slot: AgentSlot, graph_id: str, level: str, session_id: str | None
) -> tuple[Path | None, str | None]:
    """
    Return the file of a log, and its session. Blocks.

    Raises:
        SessionNotFoundError, InvalidSessionIdError, UnusableFileError: See ``SessionStore.read_state``.
    """
    store = slot.runtime.session_store(graph_id)
    if level == "executions":
        if session_id is not None:
            read_session(slot, graph_id, session_id)
        return store.base / "runtime_logs" / "executions.jsonl", session_id
    if session_id is None:
        newest = next(iter(store.list_sessions(limit=1)), None)
        if newest is None:
            return None, None
        session_id = newest.session_id
    _, session, _ = read_session(slot, graph_id, session_id)
    name = "details.jsonl" if level == "visits" else "tool_logs.jsonl"
    return session.logs / name, session_id
