"""Tasks that are brought back, over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ConfigDict, Field

from queenright import api
from queenright.health.recovery.attempt import RecoveryState
from queenright.server.access.caller import who
from queenright.server.routes.openapi import says, to
from queenright.server.routes.pagination import Cursor, Limit, as_json, page, place_of
from queenright.server.routes.params import Body, By
from queenright.server.service import Service


class Recover(Body):
    """What is to be brought back."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"task_id": "report-7", "by": "ada"}]})

    task_id: Annotated[str, Field(min_length=1, max_length=256)]
    by: By = "operator"
    reviewed: bool = False
    from_start: Annotated[
        bool,
        Field(description="Without a valid checkpoint it may begin again from its start, whatever it did."),
    ] = False


def recoveries_router(service: Service) -> APIRouter:
    """Return the routes of recoveries."""
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
        return await health.initiate_recovery(
            body.task_id, by=who(request, body.by), reviewed=body.reviewed, from_start=body.from_start
        )

    return router
