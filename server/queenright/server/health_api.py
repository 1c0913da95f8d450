"""The health layer over HTTP: health, heartbeats, interventions, breakers and recoveries. Thin: it asks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, field_validator
from starlette.convertors import Convertor, register_url_convertor

from queenright.health.breakers.circuit import BreakerStatus
from queenright.health.breakers.registry import BreakerUnknown
from queenright.health.heartbeat import HeartbeatRefused, parse_heartbeat
from queenright.health.history import HealthSnapshot
from queenright.health.interventions.instructions import (
    Instruction,
    InstructionOver,
    Instructions,
    InstructionUnknown,
)
from queenright.health.interventions.permit import ActionRefused
from queenright.health.interventions.record import Decision
from queenright.health.interventions.target import Target
from queenright.health.service import (
    AgentHealth,
    AgentUnknown,
    EscalationOver,
    EscalationUnknown,
    TaskUnknown,
)
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.server.paging import NO_TEXT, Cursor, CursorRefused, Limit, as_json, page, place_of
from queenright.server.problems import problem
from queenright.server.service import Service
from queenright.server.view import agent_row

Text = Annotated[str, Field(max_length=2000)]
Reason = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]


_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def _printable(name: str) -> str:
    """Return a name without what would move the cursor, or break the line, where it is shown."""
    name = _ESCAPE.sub("", name)
    kept = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    if not kept:
        raise ValueError("it is blank")
    return kept


By = Annotated[
    str,
    Field(min_length=1, max_length=100, description="Who asks; it is kept."),
    AfterValidator(_printable),
]


class AgentName(Convertor[str]):
    """
    A worker's name in a path, as the service knows it.

    Whoever asks may use the raw one, with a line break in it, say, that its telemetry carries.
    """

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """Return the name that telemetry of this worker is kept under."""
        return clean_name(value)

    def to_string(self, value: str) -> str:
        """Return it for a path."""
        return value


register_url_convertor("agent", AgentName())

Open = Annotated[bool, Query(alias="open")]
_LONGEST_HISTORY = 366 * 86_400.0
_HEALTH = TypeAdapter(AgentHealth)
_SNAPSHOT = TypeAdapter(HealthSnapshot)
_BREAKER = TypeAdapter(BreakerStatus)


class Body(BaseModel):
    """What is asked: a field that is not known is refused, and so is text that no database keeps."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _can_be_kept(cls, value: Any) -> Any:
        if isinstance(value, str) and NO_TEXT.search(value):
            raise ValueError("it must have no NUL character and no half of a surrogate pair in it")
        return value


class Nudge(Body):
    """What a worker is told."""

    message: Annotated[str | None, Field(max_length=4000, pattern=r"\S")] = None
    """None: the reminder that it would get anyway."""
    session_id: str | None = None
    by: By = "operator"


class Ask(Body):
    """Why, and in which session; the newest without."""

    reason: Reason
    session_id: str | None = None
    incarnation_id: str | None = None
    """Which life of the worker, for a termination: a later one is not stopped."""
    by: By = "operator"


class Decided(Body):
    """The answer to an escalation."""

    decision: Decision
    reason: Text = ""
    by: By = "operator"
    more_time_seconds: Annotated[float | None, Field(gt=0, le=7 * 86_400, allow_inf_nan=False)] = None


class Answered(Body):
    """A worker's answer to an instruction."""

    session_id: str
    incarnation_id: str
    outcome: Literal["done", "refused", "failed"]
    detail: Text = ""
    checkpoint_id: Annotated[str | None, Field(max_length=256)] = None


class Reset(Body):
    """Who closes a breaker."""

    by: By = "operator"


class Recover(Body):
    """What is to be brought back."""

    task_id: Annotated[str, Field(min_length=1, max_length=256)]
    by: By = "operator"
    reviewed: bool = False


class EmergencyStop(Body):
    """Whether acting is to be frozen, and why."""

    on: bool
    reason: Reason
    by: By = "operator"


def add_health_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of the health layer, and the status codes of what it refuses."""
    unknown = (AgentUnknown, BreakerUnknown, EscalationUnknown, InstructionUnknown, TaskUnknown)
    for kind, status in (
        *((error, 404) for error in unknown),
        (EscalationOver, 409),
        (InstructionOver, 409),
        (HeartbeatRefused, 400),
        (CursorRefused, 400),
    ):
        app.add_exception_handler(kind, answering(status))

    @app.exception_handler(ActionRefused)
    async def refused(request: Request, error: ActionRefused) -> JSONResponse:
        return problem(409, str(error), reason=error.reason)

    app.include_router(_health(service), tags=["health"])
    app.include_router(_interventions(service), tags=["interventions"])
    app.include_router(_instructions(service), tags=["workers"])
    app.include_router(_breakers(service), tags=["circuit breakers"])
    app.include_router(_recoveries(service), tags=["recoveries"])


def answering(status: int) -> Any:
    """Return what answers an error with a status code and its words."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        return problem(status, str(error))

    return handle


def _health(service: Service) -> APIRouter:
    router, health = APIRouter(), service.health

    def row(one: AgentHealth) -> dict[str, Any]:
        found: dict[str, Any] = _HEALTH.dump_python(one, mode="json")
        worker = service.monitor.get(one.agent_id, one.session_id)
        return (agent_row(worker, service.clock()) if worker is not None else {}) | found

    @router.get("/api/agents")
    async def agents(limit: Limit = 100, cursor: Cursor = None) -> Response:
        """The workers that are known, each of its sessions, by name, with state and vital signs."""
        after = place_of(cursor, "agents", str, str)
        found = health.workers(limit=limit + 1, after=after)
        now = service.clock()
        return await page(
            "agents", found, limit, row=lambda one: agent_row(one, now), place=lambda one: one.key
        )

    # Before the route of one worker: this is the health of all, not the worker that has no name.
    @router.get("/api/agents/health")
    async def all_health(limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Every worker's health, each of its sessions, by name: signals, metrics, circuit breakers."""
        after = place_of(cursor, "agents", str, str)
        found = await health.get_all_agent_health(limit=limit + 1, after=after)
        return await page("agents", found, limit, row=row, place=lambda one: (one.agent_id, one.session_id))

    @router.get("/api/agents/{agent_id:agent}/health")
    async def agent(agent_id: str, session_id: str | None = None) -> JSONResponse:
        """One worker's health: its state, the signals behind it, its metrics and its circuit breakers."""
        return JSONResponse(row(await health.get_agent_health(agent_id, session_id)))

    @router.get("/api/agents/{agent_id:agent}/history")
    async def history(
        agent_id: str,
        seconds: Annotated[float, Field(gt=0, le=_LONGEST_HISTORY)] = 86_400.0,
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

    @router.get("/api/agents/{agent_id:agent}/heartbeat")
    async def last_heartbeat(agent_id: str) -> dict[str, Any]:
        """The last heartbeat of a worker."""
        found = await health.get_last_heartbeat(agent_id)
        if found is None:
            raise HTTPException(404, f"no heartbeat of {agent_id!r} has come in")
        return as_json(found)

    @router.post("/api/heartbeats", status_code=202)
    async def heartbeat(request: Request) -> dict[str, str]:
        """One heartbeat; ``snake_case`` or ``camelCase``. Accepted once it is durable."""
        parsed = parse_heartbeat(await request.body())
        await health.record_heartbeat(parsed)
        return {"agent_id": parsed.agent_id}

    return router


def _interventions(service: Service) -> APIRouter:
    router, health = APIRouter(), service.health

    @router.post("/api/agents/{agent_id:agent}/nudge", status_code=202)
    async def nudge(agent_id: str, body: Nudge | None = None) -> Any:
        """Put a message into a worker's context."""
        given = body or Nudge()
        return await health.send_nudge(agent_id, given.message, session_id=given.session_id, by=given.by)

    @router.post("/api/agents/{agent_id:agent}/escalate", status_code=202)
    async def escalate(agent_id: str, body: Ask) -> Any:
        """Ask the orchestrator what is to become of a worker."""
        return await health.escalate_to_orchestrator(
            agent_id, body.reason, session_id=body.session_id, by=body.by
        )

    @router.post("/api/agents/{agent_id:agent}/terminate", status_code=202)
    async def terminate(agent_id: str, body: Ask) -> Any:
        """Stop a worker: its state is saved, what it holds is freed."""
        return await health.terminate_agent(
            agent_id,
            body.reason,
            session_id=body.session_id,
            incarnation_id=body.incarnation_id,
            by=body.by,
        )

    @router.get("/api/interventions")
    async def interventions(
        agent_id: str | None = None, limit: Limit = 100, cursor: Cursor = None
    ) -> Response:
        """What was done to workers, or would have been; newest first."""
        before = place_of(cursor, "interventions", float, str)
        found = await health.interventions(limit + 1, agent_id, before=before)
        return await page(
            "interventions",
            found,
            limit,
            row=as_json,
            place=lambda one: (one.created_at, one.intervention_id),
        )

    @router.get("/api/escalations")
    async def escalations(only_open: Open = False, limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Questions to the orchestrator, newest first; only those without an answer with ``open``."""
        before = place_of(cursor, "escalations", float, str)
        found = await health.escalations(open_only=only_open, limit=limit + 1, before=before)
        return await page(
            "escalations", found, limit, row=as_json, place=lambda one: (one.created_at, one.escalation_id)
        )

    @router.post("/api/escalations/{escalation_id}/decision", status_code=202)
    async def decide(escalation_id: str, body: Decided) -> Any:
        """Answer one: more time, a hand-off, or the end."""
        return await health.decide_escalation(
            escalation_id,
            body.decision,
            by=body.by,
            reason=body.reason,
            more_time_seconds=body.more_time_seconds,
        )

    @router.get("/api/emergency-stop")
    async def emergency_stop() -> Any:
        """Whether acting is frozen, since when, by whom and why."""
        return health.emergency_stopped

    @router.put("/api/emergency-stop")
    async def set_emergency_stop(body: EmergencyStop) -> Any:
        """Freeze acting, or let it go on. Detecting, judging and paging go on either way."""
        return await health.emergency_stop(body.on, by=body.by, reason=body.reason)

    return router


def _instructions(service: Service) -> APIRouter:
    router, mailbox = APIRouter(), service.instructions

    @router.get("/api/agents/{agent_id:agent}/instructions")
    async def pull(
        agent_id: str,
        session_id: str,
        incarnation_id: str,
        wait: Annotated[float, Field(ge=0, le=60)] = 0.0,
    ) -> dict[str, Any]:
        """What there is for a worker; a long poll of up to ``wait`` seconds. Asking makes it reachable."""
        target = _asker(agent_id, session_id, incarnation_id)
        found = await _until_stopping(service, mailbox, target, wait)
        fields = {"instruction_id", "kind", "message", "expires_at"}
        return {"instructions": [one.model_dump(mode="json", include=fields) for one in found]}

    @router.post("/api/agents/{agent_id:agent}/instructions/{instruction_id}/answer", status_code=204)
    async def answer(agent_id: str, instruction_id: str, body: Answered) -> Response:
        """What became of an instruction; the same answer twice is one."""
        target = _asker(agent_id, body.session_id, body.incarnation_id)
        checkpoint = redact(body.checkpoint_id, 256) if body.checkpoint_id is not None else None
        await mailbox.answer(
            target, instruction_id, body.outcome, detail=body.detail, checkpoint_id=checkpoint
        )
        return Response(status_code=204)

    return router


def _asker(agent_id: str, session_id: str, incarnation_id: str) -> Target:
    """Return who asks, by the names that the service has from its telemetry."""
    if not agent_id:
        raise HTTPException(404, "the path names no worker: give its name after /api/agents/")
    return Target(
        agent_id=agent_id, session_id=clean_name(session_id), incarnation_id=clean_name(incarnation_id)
    )


async def _until_stopping(
    service: Service, mailbox: Instructions, target: Target, wait: float
) -> Sequence[Instruction]:
    """Pull; but a service that stops waits for no worker."""
    pulling = asyncio.ensure_future(mailbox.pull(target, wait))
    stopping = asyncio.ensure_future(service.stopping.wait())
    try:
        await asyncio.wait((pulling, stopping), return_when=asyncio.FIRST_COMPLETED)
        return pulling.result() if pulling.done() else ()
    finally:
        stopping.cancel()
        pulling.cancel()


def _breakers(service: Service) -> APIRouter:
    router, health = APIRouter(), service.health

    @router.get("/api/breakers")
    async def breakers(only_open: Open = False, limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Circuit breakers by name; only those that are not closed with ``open``."""
        (after,) = place_of(cursor, "breakers", str) or ("",)
        found = await health.circuit_breakers(limit + 1, after=after, only_open=only_open)
        return await page(
            "breakers",
            found,
            limit,
            row=lambda one: _BREAKER.dump_python(one, mode="json"),
            place=lambda one: (one.name,),
        )

    @router.get("/api/breakers/{name:path}")
    async def breaker(name: str) -> Any:
        """One circuit breaker."""
        return await health.get_circuit_breaker_status(name)

    @router.post("/api/breakers/{name:path}/reset")
    async def reset(name: str, body: Reset | None = None) -> Any:
        """Close a circuit breaker by hand."""
        await health.reset_circuit_breaker(name, by=(body or Reset()).by)
        return await health.get_circuit_breaker_status(name)

    return router


def _recoveries(service: Service) -> APIRouter:
    router, health = APIRouter(), service.health

    @router.get("/api/recoveries")
    async def recoveries(limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Recoveries, newest first."""
        before = place_of(cursor, "recoveries", float, str)
        found = await health.recoveries(limit + 1, before=before)
        return await page(
            "recoveries", found, limit, row=as_json, place=lambda one: (one.created_at, one.recovery_id)
        )

    @router.get("/api/recoveries/{task_id:path}")
    async def recovery(task_id: str) -> Any:
        """How bringing a task back stands: attempts, limits, what is under way."""
        return await health.get_recovery_status(task_id)

    @router.post("/api/recoveries", status_code=202)
    async def recover(body: Recover) -> Any:
        """Bring a task back from its last valid checkpoint."""
        return await health.initiate_recovery(body.task_id, by=body.by, reviewed=body.reviewed)

    return router
