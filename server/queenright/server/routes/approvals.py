"""Approvals over HTTP: what the queen asks for, and a person's word on it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Request, Response
from pydantic import ConfigDict

from queenright import api
from queenright.health.interventions.approvals import ApprovalClosedError, ApprovalNotFoundError
from queenright.server.access.caller import who, who_from
from queenright.server.routes.openapi import says, to
from queenright.server.routes.pagination import Cursor, Limit, as_json, page, place_of
from queenright.server.routes.params import Body, By, Open, Text, answering
from queenright.server.service import Service

Id = Annotated[str, Path(description="Which request.")]


class Word(Body):
    """Who answers, and why."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"by": "ada", "reason": "it spends tokens"}]})

    by: By = "operator"
    reason: Text = ""


def add_approvals_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of approvals, and the status codes of what they refuse."""
    app.add_exception_handler(ApprovalNotFoundError, answering(404))
    app.add_exception_handler(ApprovalClosedError, answering(409))
    router, approvals = APIRouter(), service.approvals

    @router.get(
        "/api/approvals",
        **says(
            "list_approvals",
            api.ApprovalsPage,
            links={
                "approve": to("approve_termination", approval_id="approvals/0/approval_id"),
                "deny": to("deny_termination", approval_id="approvals/0/approval_id"),
            },
        ),
    )
    async def history(only_open: Open = False, limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Requests to stop a worker, newest first; with ``open`` only those that are not over."""
        before = place_of(cursor, "approvals", float, str)
        found = await approvals.history(limit=limit + 1, only_open=only_open, before=before)
        return await page(
            "approvals", found, limit, row=as_json, place=lambda one: (one.created_at, one.approval_id)
        )

    @router.post(
        "/api/approvals/{approval_id}/approve",
        **says("approve_termination", api.Approval, status=202, refused=(404, 409)),
    )
    async def approve(request: Request, approval_id: Id, body: Word | None = None) -> Any:
        """Stop the worker, as it was asked for; everything is looked at again first."""
        given = body or Word()
        return await approvals.approve(approval_id, by=who_from(request, given.by), reason=given.reason)

    @router.post(
        "/api/approvals/{approval_id}/deny",
        **says("deny_termination", api.Approval, status=202, refused=(404, 409)),
    )
    async def deny(request: Request, approval_id: Id, body: Word | None = None) -> Any:
        """Leave the worker alone."""
        given = body or Word()
        return await approvals.deny(approval_id, by=who(request, given.by), reason=given.reason)

    app.include_router(router, tags=["interventions"])
