"""Callbacks of Alertmanager, Slack and PagerDuty."""

from __future__ import annotations

from fastapi import APIRouter, BackgroundTasks, HTTPException, Request

from queenright import api
from queenright.alerting.callbacks.alertmanager import NotificationBody, SymptomsBody, parse_symptoms
from queenright.alerting.callbacks.slack_buttons import post_reply
from queenright.alerting.config import DELIVERED_PATH
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.gateway_requests import is_from_gateway
from queenright.server.routes.openapi import make_body_schema, make_request_body, operation

router = APIRouter(tags=["callbacks"])

_SYMPTOMS_SCHEMA = make_body_schema(
    SymptomsBody,
    {
        "version": "4",
        "status": "firing",
        "alerts": [{"status": "firing", "labels": {"alertname": "QueenrightStall", "agent": "researcher"}}],
    },
)
_SIGNATURE_ERRORS = {403: "The signature is missing or invalid.", 404: "The settings have no signing secret."}
_NOTIFICATIONS_SCHEMA = make_body_schema(
    NotificationBody,
    {
        "version": "4",
        "receiver": "pagerduty",
        "groupKey": "{}",
        "alerts": [{"status": "firing", "labels": {"agent": "researcher"}, "annotations": {}}],
    },
)
_CLICK_SCHEMA = {
    "type": "object",
    "required": ["payload"],
    "properties": {"payload": {"type": "string", "description": "JSON, as Slack sends it."}},
    "examples": [{"payload": '{"type": "block_actions", "actions": []}'}],
}
_INCIDENT_SCHEMA = {
    "type": "object",
    "description": "Other fields are ignored.",
    "required": ["event"],
    "properties": {"event": {"type": "object"}},
    "examples": [{"event": {"id": "01", "event_type": "incident.acknowledged", "data": {}}}],
}


@router.post(
    "/api/alertmanager/webhook",
    **operation(status=202),
    openapi_extra=make_request_body(_SYMPTOMS_SCHEMA, description="Alertmanager's webhook payload."),
)
async def record_symptoms(request: Request, service: ServiceDep) -> api.SymptomsReceipt:
    """Receive symptom alerts from Alertmanager. They wake the judge and page nobody."""
    symptoms = parse_symptoms(await request.body())
    for symptom in symptoms:
        if symptom.status == "firing":
            service.judging.wake(symptom.agent or None, reason=symptom.alertname)
    return api.SymptomsReceipt(symptoms=len(symptoms))


@router.post("/api/deadman", **operation(status=204, description="The alert was received."))
async def record_watchdog() -> None:
    """Receive the Watchdog alert, which proves that Prometheus and Alertmanager work."""


@router.post(
    DELIVERED_PATH,
    **operation(status=202),
    openapi_extra=make_request_body(_NOTIFICATIONS_SCHEMA, description="Alertmanager's webhook payload."),
)
async def record_notifications(request: Request, service: ServiceDep) -> api.DeliveriesReceipt:
    """Receive the notifications that Alertmanager sent to people, and record them for each ticket."""
    return api.DeliveriesReceipt(noted=await service.callbacks.record_notification(await request.body()))


@router.post(
    "/api/slack/actions",
    **operation(errors=_SIGNATURE_ERRORS),
    openapi_extra=make_request_body(
        _CLICK_SCHEMA,
        media="application/x-www-form-urlencoded",
        description="An interaction payload of Slack.",
    ),
)
async def slack_action(request: Request, service: ServiceDep, tasks: BackgroundTasks) -> api.SlackReply:
    """Receive a signed click on a button in Slack; Slack shows the reply."""
    reply, reply_url = await service.callbacks.handle_slack_click(
        await request.body(),
        timestamp=_read_single_header(request, "x-slack-request-timestamp"),
        signature=_read_single_header(request, "x-slack-signature"),
    )
    # The gateway of a cluster asks all partitions. A partition that does not know the ticket must not reply.
    is_answer = reply["response_type"] == "in_channel" or not is_from_gateway(request)
    if reply_url and is_answer:
        tasks.add_task(post_reply, reply_url, reply)
    return api.SlackReply.model_validate(reply)


@router.post(
    "/api/pagerduty/webhook",
    **operation(status=202, errors=_SIGNATURE_ERRORS),
    openapi_extra=make_request_body(_INCIDENT_SCHEMA, description="A webhook event of PagerDuty, version 3."),
)
async def pagerduty_webhook(request: Request, service: ServiceDep) -> api.IncidentReceipt:
    """Receive a signed change of a PagerDuty incident. Return what was done."""
    signatures = _read_single_header(request, "x-pagerduty-signature")
    receipt = await service.callbacks.handle_pagerduty_event(await request.body(), signatures=signatures)
    return api.IncidentReceipt.model_validate(receipt)


def _read_single_header(request: Request, name: str) -> str:
    """Return a header, or "". A signed request that has it twice is forged, and is rejected with a 400."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise HTTPException(400, f"the header {name} is present {len(values)} times; send it once")
    return values[0] if values else ""
