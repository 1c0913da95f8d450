"""The health layer over HTTP: health, heartbeats, interventions, breakers and recoveries. Thin: it asks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, TypeAdapter, field_validator
from starlette.convertors import Convertor, register_url_convertor

from queenright import api
from queenright.health.breakers.circuit import BreakerStatus
from queenright.health.breakers.registry import BreakerUnknown
from queenright.health.findings import HealthState
from queenright.health.heartbeat import HeartbeatRefused, parse_heartbeat
from queenright.health.history import HealthSnapshot
from queenright.health.interventions.instructions import (
    Instruction,
    InstructionOver,
    Instructions,
    InstructionUnknown,
)
from queenright.health.interventions.permit import ActionRefused
from queenright.health.interventions.record import Decision, Outcome
from queenright.health.interventions.target import ActionKind, Target
from queenright.health.monitor import WorkerHealth
from queenright.health.recovery.attempt import RecoveryState
from queenright.health.service import (
    AgentHealth,
    AgentUnknown,
    EscalationOver,
    EscalationUnknown,
    TaskUnknown,
)
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.server.access.caller import who, who_from
from queenright.server.agents.rows import slot_row
from queenright.server.openapi import says, takes, to
from queenright.server.paging import (
    NO_TEXT,
    Cursor,
    CursorRefused,
    Limit,
    as_json,
    json_answer,
    page,
    place_of,
)
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

Open = Annotated[bool, Query(alias="open", description="Only those that are not over.")]
AgentId = Annotated[
    str, Path(description="The worker's name; a slash in it is written `%2F`.", examples=["researcher"])
]
OfAgent = Annotated[
    str | None,
    Query(description="Only of the worker of this name.", examples=["researcher"]),
    AfterValidator(lambda name: None if name is None else clean_name(name)),
]
OfSession = Annotated[str | None, Query(description="Which of its sessions; without, the newest.")]
_LONGEST_HISTORY = 366 * 86_400.0
_MOMENT = {"type": ["number", "string", "null"], "description": "Seconds since the epoch, or ISO 8601."}
_COUNT = {"type": ["integer", "null"], "minimum": 0}
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
        "interval": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 604_800},
    },
    "examples": [{"agent_id": "researcher", "task_id": "report-7", "token_count": 1200, "interval": 300}],
}
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

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"message": "Write down what blocks you.", "by": "ada"}]}
    )

    message: Annotated[str | None, Field(max_length=4000, pattern=r"\S")] = None
    """None: the reminder that it would get anyway."""
    session_id: str | None = None
    by: By = "operator"


class Ask(Body):
    """Why, and in which session; the newest without."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reason": "it repeats one search", "by": "ada"}]}
    )

    reason: Reason
    session_id: str | None = None
    incarnation_id: str | None = None
    """Which life of the worker, for a termination: a later one is not stopped."""
    by: By = "operator"


class Decided(Body):
    """The answer to an escalation."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"decision": "more_time", "more_time_seconds": 600, "reason": "slow provider"}]
        }
    )

    decision: Decision
    reason: Text = ""
    by: By = "operator"
    more_time_seconds: Annotated[float | None, Field(gt=0, le=7 * 86_400, allow_inf_nan=False)] = None


class Answered(Body):
    """A worker's answer to an instruction."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"session_id": "session-1", "incarnation_id": "life-1", "outcome": "done"}]
        }
    )

    session_id: str
    incarnation_id: str
    outcome: Literal["done", "refused", "failed"]
    detail: Text = ""
    checkpoint_id: Annotated[str | None, Field(max_length=256)] = None


class Reset(Body):
    """Who closes a breaker."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"by": "ada"}]})

    by: By = "operator"


class Recover(Body):
    """What is to be brought back."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"task_id": "report-7", "by": "ada"}]})

    task_id: Annotated[str, Field(min_length=1, max_length=256)]
    by: By = "operator"
    reviewed: StrictBool = False


class EmergencyStop(Body):
    """Whether acting is to be frozen, and why."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"on": True, "reason": "the provider is down", "by": "ada"}]}
    )

    on: StrictBool
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
            raise AgentUnknown(agent_id, session_id)
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


def _interventions(service: Service) -> APIRouter:
    router, health = APIRouter(), service.health

    done = {"interventions": to("list_interventions", agent_id="path.agent_id")}

    @router.post(
        "/api/agents/{agent_id:agent}/nudge",
        **says("nudge_agent", api.NudgeResult, status=202, refused=(404, 409), links=done),
    )
    async def nudge(request: Request, agent_id: AgentId, body: Nudge | None = None) -> Any:
        """Put a message into a worker's context."""
        given = body or Nudge()
        return await health.send_nudge(
            agent_id, given.message, session_id=given.session_id, by=who(request, given.by)
        )

    @router.post(
        "/api/agents/{agent_id:agent}/escalate",
        **says(
            "escalate_agent",
            api.EscalationResult,
            status=202,
            refused=(404, 409),
            links=done | {"decision": to("decide_escalation", escalation_id="escalation_id")},
        ),
    )
    async def escalate(request: Request, agent_id: AgentId, body: Ask) -> Any:
        """Ask the orchestrator what is to become of a worker."""
        return await health.escalate_to_orchestrator(
            agent_id, body.reason, session_id=body.session_id, by=who(request, body.by)
        )

    @router.post(
        "/api/agents/{agent_id:agent}/terminate",
        **says("terminate_agent", api.TerminationResult, status=202, refused=(404, 409), links=done),
    )
    async def terminate(request: Request, agent_id: AgentId, body: Ask) -> Any:
        """Stop a worker: its state is saved, what it holds is freed."""
        return await health.terminate_agent(
            agent_id,
            body.reason,
            session_id=body.session_id,
            incarnation_id=body.incarnation_id,
            by=who_from(request, body.by),
        )

    @router.get(
        "/api/interventions",
        **says(
            "list_interventions",
            api.InterventionsPage,
            links={"agent": to("get_agent_health", agent_id="interventions/0/agent_id")},
        ),
    )
    async def interventions(
        agent_id: OfAgent = None,
        kind: Annotated[ActionKind | None, Query(description="Only of this kind.")] = None,
        outcome: Annotated[Outcome | None, Query(description="Only with this outcome.")] = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response:
        """What was done to workers, or would have been; newest first."""
        before = place_of(cursor, "interventions", float, str)
        found = await health.interventions(limit + 1, agent_id, kind=kind, outcome=outcome, before=before)
        return await page(
            "interventions",
            found,
            limit,
            row=as_json,
            place=lambda one: (one.created_at, one.intervention_id),
        )

    @router.get(
        "/api/escalations",
        **says(
            "list_escalations",
            api.EscalationsPage,
            links={"decision": to("decide_escalation", escalation_id="escalations/0/escalation_id")},
        ),
    )
    async def escalations(only_open: Open = False, limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Questions to the orchestrator, newest first; only those without an answer with ``open``."""
        before = place_of(cursor, "escalations", float, str)
        found = await health.escalations(open_only=only_open, limit=limit + 1, before=before)
        return await page(
            "escalations", found, limit, row=as_json, place=lambda one: (one.created_at, one.escalation_id)
        )

    @router.post(
        "/api/escalations/{escalation_id}/decision",
        **says("decide_escalation", api.Escalation, status=202, refused=(404, 409)),
    )
    async def decide(
        request: Request, escalation_id: Annotated[str, Path(description="Which one.")], body: Decided
    ) -> Any:
        """Answer one: more time, a hand-off, or the end."""
        return await health.decide_escalation(
            escalation_id,
            body.decision,
            by=who_from(request, body.by),
            reason=body.reason,
            more_time_seconds=body.more_time_seconds,
        )

    @router.get("/api/emergency-stop", **says("get_emergency_stop", api.EmergencyStop))
    async def emergency_stop() -> Any:
        """Whether acting is frozen, since when, by whom and why."""
        return health.emergency_stopped

    @router.put("/api/emergency-stop", **says("set_emergency_stop", api.EmergencyStop))
    async def set_emergency_stop(request: Request, body: EmergencyStop) -> Any:
        """Freeze acting, or let it go on. Detecting, judging and paging go on either way."""
        return await health.emergency_stop(body.on, by=who_from(request, body.by), reason=body.reason)

    return router


def _instructions(service: Service) -> APIRouter:
    router, mailbox = APIRouter(), service.instructions

    @router.get(
        "/api/agents/{agent_id:agent}/instructions",
        **says(
            "pull_instructions",
            api.Instructions,
            refused={404: "The path names no worker."},
            links={
                "answer": to(
                    "answer_instruction",
                    agent_id="path.agent_id",
                    instruction_id="instructions/0/instruction_id",
                )
            },
        ),
    )
    async def pull(
        agent_id: AgentId,
        session_id: Annotated[str, Query(description="The session that asks.")],
        incarnation_id: Annotated[str, Query(description="The life that asks.")],
        wait: Annotated[
            float, Query(ge=0, le=60, description="Seconds to wait for one, if there is none.")
        ] = 0.0,
    ) -> dict[str, Any]:
        """What there is for a worker; a long poll of up to ``wait`` seconds. Asking makes it reachable."""
        target = _asker(agent_id, session_id, incarnation_id)
        found = await _until_stopping(service, mailbox, target, wait)
        fields = {"instruction_id", "kind", "message", "expires_at"}
        return {"instructions": [one.model_dump(mode="json", include=fields) for one in found]}

    @router.post(
        "/api/agents/{agent_id:agent}/instructions/{instruction_id}/answer",
        **says("answer_instruction", None, status=204, refused=(404, 409), what="It is noted."),
    )
    async def answer(
        agent_id: AgentId,
        instruction_id: Annotated[str, Path(description="Which instruction.")],
        body: Answered,
    ) -> Response:
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


BreakerName = Annotated[
    str, Path(description="The breaker's name; a slash may stand as it is.", examples=["provider:openai"])
]


def _breakers(service: Service) -> APIRouter:
    router, health = APIRouter(), service.health

    name_of = to("get_breaker", name="breakers/0/name")

    @router.get(
        "/api/breakers",
        **says(
            "list_breakers",
            api.BreakersPage,
            links={"breaker": name_of, "reset": to("reset_breaker", name="breakers/0/name")},
        ),
    )
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

    @router.get(
        "/api/breakers/{name:path}",
        **says(
            "get_breaker",
            api.Breaker,
            refused=(404,),
            links={"reset": to("reset_breaker", name="path.name")},
        ),
    )
    async def breaker(name: BreakerName) -> Any:
        """One circuit breaker."""
        return await health.get_circuit_breaker_status(name)

    @router.post("/api/breakers/{name:path}/reset", **says("reset_breaker", api.Breaker, refused=(404,)))
    async def reset(request: Request, name: BreakerName, body: Reset | None = None) -> Any:
        """Close a circuit breaker by hand."""
        await health.reset_circuit_breaker(name, by=who(request, (body or Reset()).by))
        return await health.get_circuit_breaker_status(name)

    return router


def _recoveries(service: Service) -> APIRouter:
    router, health = APIRouter(), service.health

    @router.get(
        "/api/recoveries",
        **says(
            "list_recoveries",
            api.RecoveriesPage,
            links={"task": to("get_recovery", task_id="recoveries/0/task_id")},
        ),
    )
    async def recoveries(
        state: Annotated[RecoveryState | None, Query(description="Only those in this state.")] = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response:
        """Recoveries, newest first."""
        before = place_of(cursor, "recoveries", float, str)
        found = await health.recoveries(limit + 1, state=state, before=before)
        return await page(
            "recoveries", found, limit, row=as_json, place=lambda one: (one.created_at, one.recovery_id)
        )

    @router.get("/api/recoveries/{task_id:path}", **says("get_recovery", api.RecoveryStatus, refused=(404,)))
    async def recovery(
        task_id: Annotated[str, Path(description="Which task.", examples=["report-7"])],
    ) -> Any:
        """How bringing a task back stands: attempts, limits, what is under way."""
        return await health.get_recovery_status(task_id)

    @router.post(
        "/api/recoveries",
        **says(
            "initiate_recovery",
            api.RecoveryResult,
            status=202,
            refused=(404, 409),
            links={"task": to("get_recovery", task_id="body.task_id")},
        ),
    )
    async def recover(request: Request, body: Recover) -> Any:
        """Bring a task back from its last valid checkpoint."""
        return await health.initiate_recovery(body.task_id, by=who(request, body.by), reviewed=body.reviewed)

    return router
