"""What the judge did, over HTTP: one line for every check it made."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, FastAPI, Response

from queenright import api
from queenright.health.event_log import read_latest
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.routes.openapi import says
from queenright.server.routes.pagination import Cursor, Limit, page, place_of
from queenright.server.service import Service


def add_judge_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of the judge."""
    router = APIRouter()

    @router.get("/api/judge/checks", **says("list_judge_checks", api.JudgeChecksPage))
    async def checks(limit: Limit = 100, cursor: Cursor = None) -> Response:
        """The judge's checks, newest first: what woke it, what came of it, what it cost."""
        (before,) = place_of(cursor, "checks", int) or (None,)
        found = await service.store.read(
            lambda conn: read_latest(conn, EventType.JUDGE_CHECKED, before=before, limit=limit + 1)
        )
        return await page(
            "checks", found, limit, row=lambda one: check_row(one[1]), place=lambda one: (one[0],)
        )

    app.include_router(router, tags=["judge"])


def check_row(event: AgentEvent) -> dict[str, Any]:
    """Return a check as it is shown."""
    at = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="seconds")
    return {"checked_at": at, **event.data}
