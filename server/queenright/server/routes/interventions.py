"""Interventions: nudges, escalations, terminations and the emergency stop."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from queenright import api
from queenright.health.action_kind import ActionKind
from queenright.health.interventions.escalation import Decision
from queenright.health.interventions.intervention import InterventionOutcome
from queenright.server.access.caller import get_audit_name, get_person_name
from queenright.server.routes.dependencies import HealthDep, ServiceDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import (
    AgentId,
    AgentQuery,
    Body,
    By,
    ExpectedWorker,
    OnlyOpenQuery,
    Reason,
    Text,
)
from queenright.server.routes.preconditions import require_unchanged_worker
from queenright.server.routes.short_ids import MAX_CANDIDATES, complete_id

router = APIRouter(prefix="/api", tags=["interventions"])


class NudgeRequest(ExpectedWorker):
    """A message to a session of a worker, by default the newest."""

    message: Annotated[str | None, Field(max_length=4000, pattern=r"\S")] = None
    """None sends the default reminder."""
    by: By = "operator"


class WorkerRequest(ExpectedWorker):
    """The reason for an action on a session of a worker, by default the newest."""

    reason: Reason
    by: By = "operator"


class EscalationDecisionRequest(ExpectedWorker):
    """The answer to an escalation."""

    decision: Decision
    reason: Text = ""
    by: By = "operator"
    more_time_seconds: Annotated[float | None, Field(gt=0, le=7 * 86_400, allow_inf_nan=False)] = None


class EmergencyStopRequest(Body):
    """Whether to freeze interventions, and why."""

    on: bool
    reason: Reason
    by: By = "operator"


@router.post("/agents/{agent_id:agent}/nudge", **operation(status=202, errors=(404, 409)))
async def nudge_agent(
    request: Request, health: HealthDep, agent_id: AgentId, body: NudgeRequest | None = None
) -> api.NudgeResult:
    """Add a message to a worker's context."""
    nudge = body or NudgeRequest()
    intervention = await health.send_nudge(
        agent_id,
        nudge.message,
        session_id=nudge.session_id,
        incarnation_id=nudge.incarnation_id,
        by=get_person_name(request, nudge.by),
    )
    return api.NudgeResult.of(intervention, delivered=intervention.is_delivered)


@router.post("/agents/{agent_id:agent}/escalate", **operation(status=202, errors=(404, 409)))
async def escalate_agent(
    request: Request, health: HealthDep, agent_id: AgentId, body: WorkerRequest
) -> api.EscalationResult:
    """Ask the orchestrator to decide about a worker."""
    return api.EscalationResult.of(
        await health.escalate_to_orchestrator(
            agent_id,
            body.reason,
            session_id=body.session_id,
            incarnation_id=body.incarnation_id,
            by=get_person_name(request, body.by),
        )
    )


@router.post("/agents/{agent_id:agent}/terminate", **operation(status=202, errors=(404, 409)))
async def terminate_agent(
    request: Request, health: HealthDep, agent_id: AgentId, body: WorkerRequest
) -> api.TerminationResult:
    """Terminate a worker: its state is saved and its resources are freed."""
    intervention = await health.terminate_agent(
        agent_id,
        body.reason,
        session_id=body.session_id,
        incarnation_id=body.incarnation_id,
        by=get_audit_name(request, body.by),
    )
    return api.TerminationResult.of(intervention, terminated=intervention.has_stopped)


@router.get("/interventions")
async def list_interventions(
    health: HealthDep,
    agent_id: AgentQuery = None,
    kind: Annotated[ActionKind | None, Query(description="Only interventions of this kind.")] = None,
    outcome: Annotated[
        InterventionOutcome | None, Query(description="Only interventions with this outcome.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.InterventionsPage:
    """List interventions, dry runs included, newest first."""
    before = decode_cursor(cursor, "interventions", float, str)
    return await build_page(
        api.InterventionsPage,
        "interventions",
        await health.interventions(limit + 1, agent_id, kind=kind, outcome=outcome, before=before),
        limit,
        row=api.Intervention.of,
        position=lambda intervention: (intervention.created_at, intervention.intervention_id),
        descending=True,
    )


@router.get("/escalations")
async def list_escalations(
    health: HealthDep, only_open: OnlyOpenQuery = False, limit: Limit = 100, cursor: Cursor = None
) -> api.EscalationsPage:
    """List escalations to the orchestrator, newest first; with ``open`` only those without a decision."""
    before = decode_cursor(cursor, "escalations", float, str)
    return await build_page(
        api.EscalationsPage,
        "escalations",
        await health.escalations(open_only=only_open, limit=limit + 1, before=before),
        limit,
        row=api.Escalation.of,
        position=lambda escalation: (escalation.created_at, escalation.escalation_id),
        descending=True,
    )


@router.post("/escalations/{escalation_id}/decision", **operation(status=202, errors=(404, 409)))
async def decide_escalation(
    request: Request,
    service: ServiceDep,
    escalation_id: Annotated[
        str, Path(description="The escalation's id, or its unique beginning (8 characters or more).")
    ],
    body: EscalationDecisionRequest,
) -> api.Escalation:
    """Decide an escalation: more time, hand-off or termination."""
    pending_escalations = service.interventions.ledger.pending
    agents = {id_: escalation.target.agent_id for id_, escalation in pending_escalations.items()}
    escalation_id = complete_id(escalation_id, "escalations", agents)
    if escalation_id in pending_escalations:
        require_unchanged_worker(service, body, pending_escalations[escalation_id].target)
    else:
        decided_escalations = await service.interventions.ledger.find_escalations_by_prefix(
            escalation_id, MAX_CANDIDATES + 1
        )
        agents = {each.escalation_id: each.agent_id for each in decided_escalations}
        escalation_id = complete_id(escalation_id, "escalations", agents)
    return api.Escalation.of(
        await service.health.decide_escalation(
            escalation_id,
            body.decision,
            by=get_audit_name(request, body.by),
            reason=body.reason,
            more_time_seconds=body.more_time_seconds,
        )
    )


@router.get("/emergency-stop")
async def get_emergency_stop(health: HealthDep) -> api.EmergencyStop:
    """Return whether interventions are frozen, since when, by whom and why."""
    return api.EmergencyStop.of(health.emergency_stop_state)


@router.put("/emergency-stop")
async def set_emergency_stop(
    request: Request, health: HealthDep, body: EmergencyStopRequest
) -> api.EmergencyStop:
    """Freeze or resume interventions. Detection, judging and paging continue either way."""
    by = get_audit_name(request, body.by)
    return api.EmergencyStop.of(await health.emergency_stop(body.on, by=by, reason=body.reason))
