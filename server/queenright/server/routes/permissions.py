"""Permission requests over HTTP: what coding agents ask, and a person's answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Request, Response
from pydantic import ConfigDict

from queenright import api
from queenright.health.interventions.permission_request import Answered
from queenright.health.interventions.permissions import PermissionNotFoundError
from queenright.health.interventions.record import Outcome
from queenright.server.access.caller import who_from
from queenright.server.routes.openapi import says, to
from queenright.server.routes.pagination import Cursor, Limit, page, place_of
from queenright.server.routes.params import Body, By, OfAgent, Text, answering
from queenright.server.service import Service


class PermissionWord(Body):
    """The answer to a permission request."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"decision": "deny", "by": "ada", "reason": "build is in use"}]}
    )

    decision: Answered
    by: By = "operator"
    reason: Text = ""


def add_permissions_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of permission requests, and the status code of what they refuse."""
    app.add_exception_handler(PermissionNotFoundError, answering(404))
    router, permissions = APIRouter(), service.permissions

    @router.get(
        "/api/permissions",
        **says(
            "list_permissions",
            api.PermissionsPage,
            links={"answer": to("answer_permission", request_id="permissions/0/request_id")},
        ),
    )
    async def waiting(agent_id: OfAgent = None, limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Permission requests that wait for an answer, newest first."""
        before = place_of(cursor, "permissions", float, str)
        found = [
            one
            for one in permissions.open_requests()
            if agent_id in (None, one.agent_id)
            and (before is None or (-one.asked_at, one.request_id) > (-before[0], before[1]))
        ]
        return await page(
            "permissions", found, limit, row=asdict, place=lambda one: (one.asked_at, one.request_id)
        )

    @router.post(
        "/api/permissions/{request_id}/answer",
        **says("answer_permission", api.PermissionResult, status=202, refused=(404, 409)),
    )
    async def answer(
        request: Request,
        request_id: Annotated[str, Path(description="Which request.")],
        body: PermissionWord,
    ) -> Any:
        """Allow or deny what an agent asks; refused once its person was asked, or somebody has answered."""
        done = await permissions.answer(
            request_id, body.decision, by=who_from(request, body.by), reason=body.reason
        )
        fields = {"agent_id", "session_id", "incarnation_id", "intervention_id", "message", "detail"}
        delivered = done.outcome is Outcome.DONE
        return done.model_dump(include=fields) | {"outcome": done.outcome, "delivered": delivered}

    app.include_router(router, tags=["interventions"])
