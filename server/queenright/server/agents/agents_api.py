"""Loaded agents over HTTP: found, loaded, looked at, unloaded."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from pydantic import Field

from queenright.api import loaded as api
from queenright.instrumentation.redaction import redact
from queenright.server.access.caller import who
from queenright.server.agents.discovery import discover
from queenright.server.agents.execution_api import execution_routes
from queenright.server.agents.graphs_api import graph_routes
from queenright.server.agents.logs_api import log_routes
from queenright.server.agents.operator_log import log_operator_action
from queenright.server.agents.requests import TAG, OfGraph, add_refusals, graph_of, on_disk
from queenright.server.agents.rows import entry_row, slot_row, stats_row, streams_of, totals_of
from queenright.server.agents.sessions_api import session_routes
from queenright.server.middleware.etags import set_etag
from queenright.server.routes.openapi import operation, to
from queenright.server.routes.pagination import Cursor, Limit, page, place_of
from queenright.server.routes.params import AgentId, Body, By
from queenright.server.service import Service
from queenright.server.views.view import agent_row

_log = logging.getLogger(__name__)

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
        description="The model to use in place of its own.",
        examples=["scripted:replies.json"],
    ),
]


class Load(Body):
    """Which agent is to be loaded. Its code runs inside the service."""

    path: FolderPath
    model: ModelName = None
    by: By = "operator"


def add_loaded_agents_api(app: FastAPI, service: Service) -> None:
    """
    Give the app the routes of what loaded agents do and have.

    Before those of workers: a worker's name is whatever is not the end of a path, so that the longer ends
    come first.
    """
    add_refusals(app)
    for routes in (graph_routes, log_routes, session_routes, execution_routes, _routes):
        app.include_router(routes(service), tags=[TAG])


def add_agents_themselves_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of one agent as such; last, as they take any name."""
    app.include_router(_themselves(service), tags=[TAG])


def _routes(service: Service) -> APIRouter:
    router, agents = APIRouter(), service.agents

    @router.get(
        "/api/discover",
        **operation(
            "discover_agents",
            api.DiscoveredPage,
            links={"load": to("load_agent")},
        ),
    )
    async def discovered(limit: Limit = 100, cursor: Cursor = None) -> api.DiscoveredPage:
        """The agents that can be loaded: what lies below `agents.roots`. None of their code is run."""
        (after,) = place_of(cursor, "agents", str) or ("",)
        there = frozenset(slot.path for slot in agents.slots.values())
        found = await asyncio.to_thread(discover, agents.roots, there)
        return await page(
            api.DiscoveredPage,
            "agents",
            [one for one in found if one.path > after][: limit + 1],
            limit,
            row=lambda one: one,
            place=lambda one: (one.path,),
            roots=[str(root) for root in agents.roots.folders],
        )

    @router.post(
        "/api/agents",
        **operation(
            "load_agent",
            api.AgentSlot,
            status=201,
            errors={
                409: "An agent of this name is loaded already.",
                422: "There is no such agent below the roots, or it cannot work; every reason is named.",
                503: "Its code does not come to an end, or the service stops.",
            },
            links={
                name: to(name, agent_id="agent_id")
                for name in ("get_agent", "trigger_agent", "chat_with_agent", "list_sessions", "unload_agent")
            },
        ),
    )
    async def load(body: Load, request: Request, response: Response) -> api.AgentSlot:
        """Load an agent and start it: its timers and events begin to count. Its code runs in the service."""
        slot = await agents.load(body.path, model=body.model)
        await log_operator_action(
            service, request, "load", slot.id, by=body.by, graph_id=slot.graph_id, detail=str(slot.path)
        )
        _log.info("agent %r was loaded from %s by %s", slot.id, slot.path, redact(who(request, body.by), 200))
        response.headers["Location"] = f"/api/agents/{slot.id}"
        return slot_row(slot)

    @router.get(
        "/api/agents/{agent_id:agent}/stats",
        **operation("get_agent_stats", api.AgentStats, errors=(404,)),
    )
    async def stats(agent_id: AgentId) -> api.AgentStats:
        """How a loaded agent is getting on: runs, and what they took."""
        slot = agents.get(agent_id)
        store = slot.runtime.session_store(slot.graph_id)
        sessions = await on_disk(slot.runtime, lambda: len(store.list_sessions()))
        totals = await on_disk(slot.runtime, lambda: totals_of(slot))
        return stats_row(slot, service.clock(), sessions=sessions, totals=totals)

    @router.get(
        "/api/agents/{agent_id:agent}/entry-points",
        **operation(
            "list_entry_points",
            api.EntryPointPage,
            errors=(404,),
            links={"trigger": to("trigger_agent", agent_id="path.agent_id")},
        ),
    )
    async def entry_points(
        agent_id: AgentId, graph_id: OfGraph = None, limit: Limit = 100, cursor: Cursor = None
    ) -> api.EntryPointPage:
        """What starts a loaded agent: calls, timers and events; of all its graphs, or of one."""
        slot = agents.get(agent_id)
        if graph_id is not None:
            graph_of(slot, graph_id)
        after = place_of(cursor, "entry_points", str, str) or ("", "")
        rows = [entry_row(entry, stream) for entry, stream in streams_of(slot, graph_id)]
        rows.sort(key=lambda one: (one.graph_id, one.entry_point_id))
        found = [one for one in rows if (one.graph_id, one.entry_point_id) > after]
        return await page(
            api.EntryPointPage,
            "entry_points",
            found,
            limit,
            row=lambda one: one,
            place=lambda one: (one.graph_id, one.entry_point_id),
        )

    return router


def _themselves(service: Service) -> APIRouter:
    router, agents = APIRouter(), service.agents

    @router.get(
        "/api/agents/{agent_id:agent}",
        **operation(
            "get_agent",
            api.AgentOne,
            errors=(404,),
            links={
                name: to(name, agent_id="path.agent_id")
                for name in ("get_agent_health", "get_agent_stats", "list_graphs")
            },
        ),
    )
    async def agent(response: Response, agent_id: AgentId) -> api.AgentOne:
        """One agent: what it is, if it is loaded here, and how it is, in each of its sessions."""
        now = service.clock()
        sessions = [agent_row(one, now) for one in service.workers() if one.vitals.agent_id == agent_id]
        slot = agents.slots.get(agent_id)
        if slot is None and not sessions:
            raise HTTPException(
                404,
                f"no worker {redact(agent_id, 200)!r} has been heard of, and no agent of this name is loaded "
                "here; `queenright list` shows who is known, `queenright agents discover` who can be loaded",
            )
        loaded = None if slot is None else slot_row(slot)
        return set_etag(response, api.AgentOne(agent_id=agent_id, loaded=loaded, sessions=sessions))

    @router.delete(
        "/api/agents/{agent_id:agent}",
        **operation("unload_agent", None, status=204, errors=(404,), description="It is unloaded."),
    )
    async def unload(
        agent_id: AgentId, request: Request, by: Annotated[By, Query(description="Who asks.")] = "operator"
    ) -> Response:
        """Unload an agent: its runs are paused and can be resumed later; its sessions stay on disk."""
        await agents.unload(agent_id)
        await service.remediation.recovery.drop_waiting(agent_id, "its agent was unloaded")
        await log_operator_action(service, request, "unload", agent_id, by=by)
        _log.info("agent %r was unloaded by %s", agent_id, redact(who(request, by), 200))
        return Response(status_code=204)

    return router
