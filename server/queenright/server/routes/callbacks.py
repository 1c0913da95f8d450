"""The way back over HTTP: Slack's clicks, PagerDuty's webhooks, and what Alertmanager says it told people."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, BackgroundTasks, FastAPI, HTTPException, Request

from queenright import api
from queenright.alerting.callbacks.pagerduty import InvalidEventError
from queenright.alerting.callbacks.signatures import InvalidSignatureError
from queenright.alerting.callbacks.slack import InvalidInteractionError, post_reply
from queenright.alerting.config import TOLD_PATH
from queenright.alerting.webhook import InvalidWebhookError
from queenright.server.routes.openapi import says, takes
from queenright.server.routes.params import answering
from queenright.server.service import Service
from queenright.server.webhooks.callbacks import CallbackNotConfiguredError

_SIGNED = {403: "It is not signed as it should be.", 404: "No secret is named in the settings."}
_ANY = {"type": "object", "description": "Whatever else there is, is let pass."}
_TOLD = _ANY | {
    "required": ["version", "receiver", "groupKey", "alerts"],
    "properties": {
        "version": {"const": "4"},
        "receiver": {"type": "string", "minLength": 1, "maxLength": 200},
        "groupKey": {"type": "string", "minLength": 1, "maxLength": 100_000},
        "alerts": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["status", "labels"],
                "properties": {
                    "status": {"enum": ["firing", "resolved"]},
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                    "annotations": {
                        "type": "object",
                        "properties": {"ticket_id": {"type": "string", "maxLength": 100}},
                    },
                },
            },
        },
    },
    "examples": [
        {
            "version": "4",
            "receiver": "pagerduty",
            "groupKey": "{}",
            "alerts": [{"status": "firing", "labels": {"agent": "researcher"}, "annotations": {}}],
        }
    ],
}
_CLICK = {
    "type": "object",
    "required": ["payload"],
    "properties": {"payload": {"type": "string", "description": "JSON, as Slack writes it."}},
    "examples": [{"payload": '{"type": "block_actions", "actions": []}'}],
}
_INCIDENT = _ANY | {
    "required": ["event"],
    "properties": {"event": {"type": "object"}},
    "examples": [{"event": {"id": "01", "event_type": "incident.acknowledged", "data": {}}}],
}


def add_callbacks_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of what comes back, and the status codes of what they refuse."""
    for kind, status in (
        (CallbackNotConfiguredError, 404),
        (InvalidSignatureError, 403),
        (InvalidInteractionError, 400),
        (InvalidEventError, 400),
        (InvalidWebhookError, 400),
    ):
        app.add_exception_handler(kind, answering(status))
    app.include_router(_routes(service), tags=["the way back"])


def _routes(service: Service) -> APIRouter:
    router, callbacks = APIRouter(), service.callbacks

    @router.post(
        TOLD_PATH,
        **says("record_told", api.ToldTaken, status=202),
        openapi_extra=takes(_TOLD, what="What Alertmanager posts to a webhook."),
    )
    async def told(request: Request) -> dict[str, int]:
        """For Alertmanager: a receiver for people was told. Noted for each ticket."""
        noted = await callbacks.told(await request.body())
        if noted:
            service.recent_notifications.look()
        return {"noted": noted}

    @router.post(
        "/api/slack/actions",
        **says("slack_action", api.SlackReply, refused=_SIGNED),
        openapi_extra=takes(_CLICK, media="application/x-www-form-urlencoded", what="A click, from Slack."),
    )
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

    @router.post(
        "/api/pagerduty/webhook",
        **says("pagerduty_webhook", api.IncidentTaken, status=202, refused=_SIGNED),
        openapi_extra=takes(_INCIDENT, what="An event of PagerDuty's webhooks, version 3."),
    )
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
