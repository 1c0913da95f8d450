"""The health layer over HTTP: health and heartbeats here, the rest in modules of their own. Thin: it asks."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from queenright import api
from queenright.health.breakers.registry import BreakerNotFoundError
from queenright.health.findings import HealthState
from queenright.health.heartbeat import InvalidHeartbeatError, parse_heartbeat
from queenright.health.history import HealthSnapshot
from queenright.health.interventions.instructions import InstructionClosedError, InstructionNotFoundError
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.monitor import WorkerHealth
from queenright.health.service import (
    AgentHealth,
    AgentNotFoundError,
    EscalationClosedError,
    EscalationNotFoundError,
    TaskNotFoundError,
)
from queenright.server.agents.rows import slot_row
from queenright.server.routes.breakers import breakers_router
from queenright.server.routes.incidents import shared_router
from queenright.server.routes.instructions import instructions_router
from queenright.server.routes.interventions import interventions_router
from queenright.server.routes.openapi import says, takes, to
from queenright.server.routes.pagination import (
    Cursor,
    InvalidCursorError,
    Limit,
    as_json,
    json_answer,
    page,
    place_of,
)
from queenright.server.routes.params import AgentId, OfAgent, OfSession, answering
from queenright.server.routes.problems import problem
from queenright.server.routes.recoveries import recoveries_router
from queenright.server.service import Service
from queenright.server.views.view import AGES, agent_row

_LONGEST_HISTORY = 366 * 86_400.0
_MOMENT = {"type": ["number", "string", "null"], "description": "Seconds since the epoch, or ISO 8601."}
_EMPTY = {"const": ""}
_COUNT = {"anyOf": [{"type": ["integer", "null"], "minimum": 0}, _EMPTY]}
_SECONDS = {"anyOf": [{"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 604_800}, _EMPTY]}
_NAME = {"type": ["string", "null"], "maxLength": 256}
_HEARTBEAT: dict[str, Any] = {
    "type": "object",
    "description": "A worker lives. What is empty is not known; `camelCase` is taken, too.",
    "required": ["agent_id"],
    "properties": {
        "agent_id": {"type": "string", "minLength": 1, "maxLength": 256},
        "session_id": _NAME,
        "incarnation_id": _NAME,
        "task_id": _NAME,
        "timestamp": _MOMENT,
        "phase": _NAME,
        "last_tool_call": _MOMENT,
        "token_count": _COUNT,
        "error_count": _COUNT,
        "progress_indicator": {"type": ["string", "number", "null"], "maxLength": 1000},
        "interval": _SECONDS,
    },
    "examples": [{"agent_id": "researcher", "task_id": "report-7", "token_count": 1200, "interval": 300}],
}
_HEALTH = TypeAdapter(AgentHealth)
_SNAPSHOT = TypeAdapter(HealthSnapshot)


def add_health_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of the health layer, and the status codes of what it refuses."""
    unknown = (
        AgentNotFoundError,
        BreakerNotFoundError,
        EscalationNotFoundError,
        InstructionNotFoundError,
        TaskNotFoundError,
    )
    for kind, status in (
        *((error, 404) for error in unknown),
        (EscalationClosedError, 409),
        (InstructionClosedError, 409),
        (InvalidHeartbeatError, 400),
        (InvalidCursorError, 400),
    ):
        app.add_exception_handler(kind, answering(status))

    @app.exception_handler(ActionRefusedError)
    async def refused(request: Request, error: ActionRefusedError) -> JSONResponse:
        return problem(409, str(error), reason=error.reason)

    app.include_router(_health(service), tags=["health"])
    app.include_router(interventions_router(service), tags=["interventions"])
    app.include_router(instructions_router(service), tags=["workers"])
    app.include_router(shared_router(service))
    app.include_router(breakers_router(service), tags=["circuit breakers"])
    app.include_router(recoveries_router(service), tags=["recoveries"])


def health_answer(service: Service, agent_id: str, session_id: str | None = None) -> Response | None:
    """Answer how a worker is; None if it is not known."""
    worker = service.monitor.get(agent_id, session_id)
    if worker is None:
        return None
    return json_answer(_health_row(service, service.health.health_of(worker), worker))


def _health_row(service: Service, one: AgentHealth, worker: WorkerHealth) -> dict[str, Any]:
    found: dict[str, Any] = _HEALTH.dump_python(one, mode="json")
    return agent_row(worker, service.clock()) | found


def _health(service: Service) -> APIRouter:
    router, health = APIRouter(), service.health

    @router.get(
        "/api/agents",
        **says(
            "list_agents",
            api.AgentsPage,
            links={
                "health": to("get_agent_health", agent_id="agents/0/agent_id"),
                "history": to("get_agent_history", agent_id="agents/0/agent_id"),
                "escalations": to("list_agent_escalations", agent_id="agents/0/agent_id"),
                "nudge": to("nudge_agent", agent_id="agents/0/agent_id"),
                "escalate": to("escalate_agent", agent_id="agents/0/agent_id"),
            },
        ),
    )
    async def agents(
        agent_id: OfAgent = None,
        state: Annotated[HealthState | None, Query(description="Only those in this state.")] = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response:
        """The workers that are known, each of its sessions, by name, with state and vital signs."""
        after = place_of(cursor, "agents", str, str)
        found = health.workers(limit=limit + 1, after=after, agent_id=agent_id, state=state)
        now = service.clock()
        return await page(
            "agents",
            found,
            limit,
            row=lambda one: agent_row(one, now),
            place=lambda one: one.key,
            of_the_clock=AGES,
            loaded=[as_json(slot_row(slot)) for slot in service.agents.slots.values()],
        )

    # Before the route of one worker: this is the health of all, not the worker that has no name.
    @router.get(
        "/api/agents/health",
        **says(
            "list_agent_health",
            api.AgentHealthPage,
            links={"breaker": to("get_breaker", name="agents/0/circuit_breakers/0/name")},
        ),
    )
    async def all_health(limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Every worker's health, each of its sessions, by name: signals, metrics, circuit breakers."""
        after = place_of(cursor, "agents", str, str)
        # One that is forgotten while others have the loop is shown all the same: as it was.
        workers = {worker.key: worker for worker in health.workers(limit=limit + 1, after=after)}
        found = await health.get_all_agent_health(limit=limit + 1, after=after)
        return await page(
            "agents",
            found,
            limit,
            row=lambda one: _health_row(service, one, workers[one.agent_id, one.session_id]),
            place=lambda one: (one.agent_id, one.session_id),
        )

    @router.get(
        "/api/agents/{agent_id:agent}/health",
        **says(
            "get_agent_health",
            api.AgentHealth,
            refused=(404,),
            links={
                "history": to("get_agent_history", agent_id="path.agent_id"),
                "terminate": to("terminate_agent", agent_id="path.agent_id"),
            },
        ),
    )
    async def agent(agent_id: AgentId, session_id: OfSession = None) -> Response:
        """One worker's health: its state, the signals behind it, its metrics and its circuit breakers."""
        answer = health_answer(service, agent_id, session_id)
        if answer is None:
            raise AgentNotFoundError(agent_id, session_id)
        return answer

    @router.get("/api/agents/{agent_id:agent}/history", **says("get_agent_history", api.HistoryPage))
    async def history(
        agent_id: AgentId,
        seconds: Annotated[
            float, Query(gt=0, le=_LONGEST_HISTORY, allow_inf_nan=False, description="How far back.")
        ] = 86_400.0,
        limit: Limit = 1000,
        cursor: Cursor = None,
    ) -> Response:
        """
        What happened to a worker in the last ``seconds``: states, interventions, recoveries, breakers.

        Oldest first, and the newest of them; ``next`` leads to what came before these.
        """
        (before,) = place_of(cursor, "history", int) or (None,)
        found = await health.get_health_history(agent_id, seconds, limit=limit + 1, before=before)
        return await page(
            "history",
            found[::-1],
            limit,
            row=lambda one: _SNAPSHOT.dump_python(one, mode="json"),
            place=lambda one: (one.seq,),
            backwards=True,
        )

    @router.get(
        "/api/agents/{agent_id:agent}/heartbeat",
        **says("get_last_heartbeat", api.Heartbeat, refused={404: "No heartbeat of it has come in."}),
    )
    async def last_heartbeat(agent_id: AgentId) -> dict[str, Any]:
        """The last heartbeat of a worker."""
        found = await health.get_last_heartbeat(agent_id)
        if found is None:
            raise HTTPException(404, f"no heartbeat of {agent_id!r} has come in")
        return as_json(found)

    @router.post(
        "/api/heartbeats",
        **says(
            "record_heartbeat",
            api.HeartbeatTaken,
            status=202,
            links={
                "health": to("get_agent_health", agent_id="agent_id"),
                "heartbeat": to("get_last_heartbeat", agent_id="agent_id"),
            },
        ),
        openapi_extra=takes(_HEARTBEAT, what="One heartbeat."),
    )
    async def heartbeat(request: Request) -> dict[str, str]:
        """One heartbeat; ``snake_case`` or ``camelCase``. Accepted once it is durable."""
        parsed = parse_heartbeat(await request.body())
        await health.record_heartbeat(parsed)
        return {"agent_id": parsed.agent_id}

    return router
