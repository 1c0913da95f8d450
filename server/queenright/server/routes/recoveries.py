"""Recoveries of tasks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from queenright import api
from queenright.health.recovery.recovery import RecoveryState
from queenright.server.access.caller import get_person_name
from queenright.server.routes.dependencies import HealthDep, ServiceDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import By, ExpectedWorker
from queenright.server.routes.preconditions import require_unchanged_worker

router = APIRouter(prefix="/api/recoveries", tags=["recoveries"])


class Recover(ExpectedWorker):
    """The task to recover, and its worker as the caller saw it."""

    task_id: Annotated[str, Field(min_length=1, max_length=256)]
    by: By = "operator"
    reviewed: bool = False
    from_start: Annotated[
        bool,
        Field(description="Start over if there is no valid checkpoint, even if the task is not idempotent."),
    ] = False


@router.get("")
async def list_recoveries(
    health: HealthDep,
    state: Annotated[RecoveryState | None, Query(description="Only recoveries in this state.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.RecoveriesPage:
    """List recoveries, newest first."""
    before = decode_cursor(cursor, "recoveries", float, str)
    return await build_page(
        api.RecoveriesPage,
        "recoveries",
        await health.recoveries(limit + 1, state=state, before=before),
        limit,
        row=api.Recovery.of,
        position=lambda recovery: (recovery.created_at, recovery.recovery_id),
        descending=True,
    )


@router.get("/{task_id:path}", **operation(errors=(404,)))
async def get_recovery(
    health: HealthDep, task_id: Annotated[str, Path(description="The task's id.", examples=["report-7"])]
) -> api.RecoveryStatus:
    """Return the recovery of a task: its attempts, its limits, and the attempt in progress."""
    return api.RecoveryStatus.of(await health.get_recovery_status(task_id))


@router.post("", **operation(status=202, errors=(404, 409)))
async def initiate_recovery(
    request: Request, service: ServiceDep, health: HealthDep, body: Recover
) -> api.RecoveryResult:
    """Recover a task from its last valid checkpoint."""
    require_unchanged_worker(service, body, await health.target_of_task(body.task_id))
    return api.RecoveryResult.of(
        await health.initiate_recovery(
            body.task_id,
            by=get_person_name(request, body.by),
            reviewed=body.reviewed,
            from_start=body.from_start,
        )
    )
