"""Routes that discover, load, show and unload agents."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import Field

from queenright.api import loaded_agents as api
from queenright.instrumentation.redaction import redact
from queenright.server.agents.discovery import find_agents
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.loaded_agents.operator_log import OperatorLogDep
from queenright.server.routes.loaded_agents.requests import (
    PREFIX,
    TAG,
    GraphQuery,
    SlotDep,
    find_graph,
    run_on_disk,
)
from queenright.server.routes.loaded_agents.rows import (
    count_totals,
    iter_streams,
    make_entry_point_row,
    make_slot_row,
    make_stats_row,
)
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import AgentId, Body, By
from queenright.server.views.worker_rows import make_agent_row

router = APIRouter(prefix="/api", tags=[TAG])
agent_router = APIRouter(prefix=PREFIX, tags=[TAG])
"""Routes for the agent itself. Add them last: their path matches any name, which may contain slashes."""

FolderPath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4096,
        description="The agent's folder, below one of `agents.roots`; see `GET /api/discover`.",
        examples=["docs_checker"],
    ),
]
ModelName = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=256,
        description="The model to use instead of the agent's own.",
        examples=["scripted:replies.json"],
    ),
]


class Load(Body):
    """The agent to load. Its code runs inside the service."""

    path: FolderPath
    model: ModelName = None
    by: By = "operator"


@router.get("/discover")
async def discover_agents(
    service: ServiceDep, limit: Limit = 100, cursor: Cursor = None
) -> api.DiscoveredPage:
    """List the agents below `agents.roots`, by path, without running their code."""
    agents = service.agents
    (after,) = decode_cursor(cursor, "agents", str) or ("",)
    loaded_folders = frozenset(slot.path for slot in agents.slots.values())
    candidates = await asyncio.to_thread(find_agents, agents.roots, loaded_folders)
    return await build_page(
        api.DiscoveredPage,
        "agents",
        [agent for agent in candidates if agent.path > after][: limit + 1],
        limit,
        row=lambda agent: agent,
        position=lambda agent: (agent.path,),
        roots=[str(root) for root in agents.roots.folders],
    )


@router.post(
    "/agents",
    **operation(
        status=201,
        errors={
            409: "An agent of this name is loaded already.",
            422: "There is no such agent below the roots, or it is invalid; `title` has every reason.",
            503: "Loading the agent timed out, or the service is stopping.",
        },
    ),
)
async def load_agent(
    service: ServiceDep, log: OperatorLogDep, body: Load, response: Response
) -> api.AgentSlot:
    """Load an agent, and start its timers and event triggers. Its code runs in the service."""
    slot = await service.agents.load(body.path, model=body.model)
    await log.write("load", slot.id, by=body.by, graph_id=slot.graph_id, detail=str(slot.path))
    response.headers["Location"] = f"/api/agents/{slot.id}"
    return make_slot_row(slot)


@router.get("/agents/{agent_id:agent}/stats", **operation(errors=(404,)))
async def get_agent_stats(service: ServiceDep, slot: SlotDep) -> api.AgentStats:
    """Return the statistics of a loaded agent: its runs, tokens and cost."""
    store = slot.runtime.session_store(slot.graph_id)
    sessions = await run_on_disk(slot.runtime, lambda: len(store.list_sessions()))
    totals = await run_on_disk(slot.runtime, lambda: count_totals(slot))
    return make_stats_row(slot, service.clock(), sessions=sessions, totals=totals)


@router.get("/agents/{agent_id:agent}/entry-points", **operation(errors=(404,)))
async def list_entry_points(
    slot: SlotDep, graph_id: GraphQuery = None, limit: Limit = 100, cursor: Cursor = None
) -> api.EntryPointPage:
    """List the entry points of a loaded agent: calls, timers and events that start a run."""
    if graph_id is not None:
        find_graph(slot, graph_id)
    after = decode_cursor(cursor, "entry_points", str, str) or ("", "")
    rows = [make_entry_point_row(entry, stream) for entry, stream in iter_streams(slot, graph_id)]
    rows.sort(key=lambda row: (row.graph_id, row.entry_point_id))
    return await build_page(
        api.EntryPointPage,
        "entry_points",
        [row for row in rows if (row.graph_id, row.entry_point_id) > after],
        limit,
        row=lambda row: row,
        position=lambda row: (row.graph_id, row.entry_point_id),
    )


@agent_router.get("", **operation(errors=(404,)))
async def get_agent(service: ServiceDep, agent_id: AgentId) -> api.AgentDetail:
    """Return an agent: the loaded agent, if it is loaded here, and the state of each of its sessions."""
    sessions = [
        make_agent_row(service, worker) for worker in service.workers() if worker.vitals.agent_id == agent_id
    ]
    slot = service.agents.slots.get(agent_id)
    if slot is None and not sessions:
        raise HTTPException(
            404,
            f"there is no worker and no loaded agent {redact(agent_id, 200)!r}; `queenright list` shows the "
            "workers, `queenright agents discover` the agents that can be loaded",
        )
    slot_model = None if slot is None else make_slot_row(slot)
    return api.AgentDetail(agent_id=agent_id, loaded=slot_model, sessions=sessions)


@agent_router.delete("", **operation(status=204, errors=(404,), description="The agent is unloaded."))
async def unload_agent(
    service: ServiceDep,
    log: OperatorLogDep,
    agent_id: AgentId,
    by: Annotated[By, Query(description="Name of the caller, for the audit trail.")] = "operator",
) -> None:
    """Unload an agent. Its runs are paused and can be resumed; its sessions stay on disk."""
    await service.agents.unload(agent_id)
    await service.remediation.recovery.drop_waiting(agent_id, "its agent was unloaded")
    await log.write("unload", agent_id, by=by)
