"""Permission requests of coding agents, and the operator's answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from queenright import api
from queenright.health.interventions.intervention import InterventionOutcome
from queenright.health.interventions.permissions import PermissionDecision
from queenright.server.access.caller import get_audit_name
from queenright.server.routes.dependencies import PermissionsDep, ServiceDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import AgentQuery, By, ExpectedWorker, Text
from queenright.server.routes.preconditions import require_unchanged_worker
from queenright.server.routes.short_ids import complete_id

router = APIRouter(prefix="/api/permissions", tags=["interventions"])


class PermissionAnswerRequest(ExpectedWorker):
    """The answer to a permission request."""

    decision: PermissionDecision
    by: By = "operator"
    reason: Text = ""


@router.get("")
async def list_permissions(
    permissions: PermissionsDep, agent_id: AgentQuery = None, limit: Limit = 100, cursor: Cursor = None
) -> api.PermissionsPage:
    """List permission requests without an answer, newest first."""
    before = decode_cursor(cursor, "permissions", float, str)
    return await build_page(
        api.PermissionsPage,
        "permissions",
        [
            request
            for request in permissions.open_requests()
            if agent_id in (None, request.agent_id)
            and (before is None or (-request.asked_at, request.request_id) > (-before[0], before[1]))
        ],
        limit,
        row=api.PermissionRequest.of,
        position=lambda request: (request.asked_at, request.request_id),
        descending=True,
    )


@router.post("/{request_id}/answer", **operation(status=202, errors=(404, 409)))
async def answer_permission(
    request: Request,
    service: ServiceDep,
    request_id: Annotated[
        str, Path(description="The request's id, or its unique beginning (8 characters or more).")
    ],
    body: PermissionAnswerRequest,
) -> api.PermissionResult:
    """Allow or deny a request. Fails if the request has expired or has been answered."""
    for requests in (service.permissions.open_requests(), service.permissions.known_requests()):
        agents = {each.request_id: each.agent_id for each in requests}
        request_id = complete_id(request_id, "requests", agents)
    require_unchanged_worker(service, body, service.permissions.find(request_id)[0].target)
    permission = await service.permissions.answer(
        request_id, body.decision, by=get_audit_name(request, body.by), reason=body.reason
    )
    return api.PermissionResult.of(permission, delivered=permission.outcome is InterventionOutcome.DONE)
