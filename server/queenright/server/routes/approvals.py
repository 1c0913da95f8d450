"""Approvals: the queen's requests to terminate a worker, and the operator's decision."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from queenright import api
from queenright.server.access.caller import get_audit_name, get_person_name
from queenright.server.routes.dependencies import ApprovalsDep, ServiceDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import By, ExpectedWorker, OnlyOpenQuery, Text
from queenright.server.routes.preconditions import require_unchanged_worker
from queenright.server.routes.short_ids import MAX_CANDIDATES, complete_id
from queenright.server.service import Service

router = APIRouter(prefix="/api/approvals", tags=["interventions"])

ApprovalId = Annotated[
    str, Path(description="The request's id, or its unique beginning (8 characters or more).")
]


class ApprovalDecision(ExpectedWorker):
    """Who decides, and why."""

    by: By = "operator"
    reason: Text = ""


@router.get("")
async def list_approvals(
    approvals: ApprovalsDep, only_open: OnlyOpenQuery = False, limit: Limit = 100, cursor: Cursor = None
) -> api.ApprovalsPage:
    """List requests to terminate a worker, newest first; with ``open`` only the pending ones."""
    before = decode_cursor(cursor, "approvals", float, str)
    return await build_page(
        api.ApprovalsPage,
        "approvals",
        await approvals.history(limit=limit + 1, only_open=only_open, before=before),
        limit,
        row=api.Approval.of,
        position=lambda approval: (approval.created_at, approval.approval_id),
        descending=True,
    )


@router.post("/{approval_id}/approve", **operation(status=202, errors=(404, 409)))
async def approve_termination(
    request: Request, service: ServiceDep, approval_id: ApprovalId, body: ApprovalDecision | None = None
) -> api.Approval:
    """Terminate the worker as requested. Its state is checked again first."""
    decision = body or ApprovalDecision()
    approval_id = await _complete_approval_id(service, decision, approval_id)
    by = get_audit_name(request, decision.by)
    return api.Approval.of(await service.approvals.approve(approval_id, by=by, reason=decision.reason))


@router.post("/{approval_id}/deny", **operation(status=202, errors=(404, 409)))
async def deny_termination(
    request: Request, service: ServiceDep, approval_id: ApprovalId, body: ApprovalDecision | None = None
) -> api.Approval:
    """Deny the request; the worker keeps running."""
    decision = body or ApprovalDecision()
    approval_id = await _complete_approval_id(service, decision, approval_id)
    by = get_person_name(request, decision.by)
    return api.Approval.of(await service.approvals.deny(approval_id, by=by, reason=decision.reason))


async def _complete_approval_id(service: Service, expected_worker: ExpectedWorker, prefix: str) -> str:
    """
    Return the complete id of a request.

    Raises:
        HTTPException: 409 if the abbreviated id is ambiguous or too short, or if the worker of a pending
            request has changed since the caller saw it.
    """
    pending_approvals = {approval.approval_id: approval for approval in service.approvals.pending()}
    agents = {id_: approval.agent_id for id_, approval in pending_approvals.items()}
    approval_id = complete_id(prefix, "approvals", agents)
    if approval_id in pending_approvals:
        require_unchanged_worker(service, expected_worker, pending_approvals[approval_id].target)
        return approval_id
    decided_approvals = await service.approvals.find_by_prefix(prefix, MAX_CANDIDATES + 1)
    return complete_id(prefix, "approvals", {each.approval_id: each.agent_id for each in decided_approvals})
