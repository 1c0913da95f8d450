"""The way back over HTTP: Slack's clicks, PagerDuty's webhooks, and what Alertmanager says it told people."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, BackgroundTasks, FastAPI, HTTPException, Request

from queenright.alerting.callbacks.pagerduty import EventRefused
from queenright.alerting.callbacks.signatures import SignatureRefused
from queenright.alerting.callbacks.slack import ClickRefused, post_reply
from queenright.alerting.config import TOLD_PATH
from queenright.alerting.webhook import WebhookRefused
from queenright.server.callbacks import NotSetUp
from queenright.server.health_api import answering
from queenright.server.service import Service


def add_callbacks_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of what comes back, and the status codes of what they refuse."""
    for kind, status in (
        (NotSetUp, 404),
        (SignatureRefused, 403),
        (ClickRefused, 400),
        (EventRefused, 400),
        (WebhookRefused, 400),
    ):
        app.add_exception_handler(kind, answering(status))
    app.include_router(_routes(service), tags=["the way back"])


def _routes(service: Service) -> APIRouter:
    router, callbacks = APIRouter(), service.callbacks

    @router.post(TOLD_PATH, status_code=202)
    async def told(request: Request) -> dict[str, int]:
        """For Alertmanager: a receiver for people was told. Noted for each ticket."""
        noted = await callbacks.told(await request.body())
        if noted:
            service.told.look()
        return {"noted": noted}

    @router.post("/api/slack/actions")
    async def slack(request: Request, later: BackgroundTasks) -> dict[str, Any]:
        """For Slack: somebody clicked on a button. Signed; answered in words, which Slack shows."""
        said, also_to = await callbacks.slack(
            await request.body(),
            timestamp=_one(request, "x-slack-request-timestamp"),
            signature=_one(request, "x-slack-signature"),
        )
        if also_to:
            later.add_task(post_reply, also_to, said)
        return said

    @router.post("/api/pagerduty/webhook", status_code=202)
    async def pagerduty(request: Request) -> dict[str, Any]:
        """For PagerDuty: what became of an incident. Signed; says what was done about it."""
        return await callbacks.pagerduty(
            await request.body(), signatures=_one(request, "x-pagerduty-signature")
        )

    return router


def _one(request: Request, name: str) -> str:
    """Return a header; which of two is meant, only a forger knows."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise HTTPException(400, f"the header {name} comes {len(values)} times; send it once")
    return values[0] if values else ""
