"""What is done to workers, over HTTP: nudges, escalations, terminations and the emergency stop."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ConfigDict, Field

from queenright import api
from queenright.health.interventions.record import Decision, Outcome
from queenright.health.interventions.target import ActionKind
from queenright.server.access.caller import who, who_from
from queenright.server.routes.openapi import says, to
from queenright.server.routes.pagination import Cursor, Limit, as_json, page, place_of
from queenright.server.routes.params import AgentId, Body, By, OfAgent, Open, Reason, Text
from queenright.server.service import Service


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


class EmergencyStop(Body):
    """Whether acting is to be frozen, and why."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"on": True, "reason": "the provider is down", "by": "ada"}]}
    )

    on: bool
    reason: Reason
    by: By = "operator"


def interventions_router(service: Service) -> APIRouter:
    """Return the routes of interventions."""
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
