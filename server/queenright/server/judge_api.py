"""What the judge did, over HTTP: one line for every check it made."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, FastAPI

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.paging import Limit
from queenright.server.service import Service


def add_judge_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of the judge."""
    router = APIRouter()

    @router.get("/api/judge/checks")
    async def checks(limit: Limit = 50) -> dict[str, Any]:
        """The judge's last checks, newest first: what woke it, what came of it, what it cost."""
        found = await service.bus.history(types={EventType.JUDGE_CHECKED}, limit=limit)
        return {"checks": [check_row(event) for event in reversed(found)]}

    app.include_router(router, tags=["judge"])


def check_row(event: AgentEvent) -> dict[str, Any]:
    """Return a check as it is shown."""
    at = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="seconds")
    return {"checked_at": at, **event.data}
