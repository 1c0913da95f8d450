"""The judge's checks."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import ValidationError

from queenright import api
from queenright.health.store.event_log import read_latest
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.routes.dependencies import StoreDep
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor

router = APIRouter(prefix="/api/judge", tags=["judge"])


@router.get("/checks")
async def list_judge_checks(
    store: StoreDep, limit: Limit = 100, cursor: Cursor = None
) -> api.JudgeChecksPage:
    """List the judge's checks, newest first: trigger, result and cost."""
    (before,) = decode_cursor(cursor, "checks", int) or (None,)
    return await build_page(
        api.JudgeChecksPage,
        "checks",
        await store.read(
            lambda conn: read_latest(conn, EventType.JUDGE_CHECKED, before=before, limit=limit + 1)
        ),
        limit,
        row=lambda check: make_check_row(check[1]),
        position=lambda check: (check[0],),
        rank=lambda check: (check[1].time, check[0]),
        descending=True,
    )


def make_check_row(event: AgentEvent) -> api.JudgeCheck:
    """Convert an event to the check that it records. Invalid fields are omitted."""
    data = {**event.data, "checked_at": event.time}
    try:
        return api.JudgeCheck.model_validate(data)
    except ValidationError as error:
        for problem in error.errors():
            data.pop(str(problem["loc"][0]), None)
        return api.JudgeCheck.model_validate(data)
