"""The HTTP API, with the console's pages beside it. Thin: every route asks the service."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import PlainTextResponse, Response

from queenright import api
from queenright.alerting.notification import list_notifications
from queenright.alerting.webhook import MAX_ALERTS, InvalidWebhookError, parse_webhook
from queenright.server.access.access import Access
from queenright.server.access.caller import may_look
from queenright.server.access.guard import Guard
from queenright.server.access.login import add_login, refusal_page
from queenright.server.access.openapi import add_access
from queenright.server.agents.agents_api import add_agents_themselves_api, add_loaded_agents_api
from queenright.server.console.pages import add_console
from queenright.server.metrics.metrics import content_type_for
from queenright.server.middleware.etags import Etags
from queenright.server.middleware.fast_routes import add_short_ways
from queenright.server.middleware.gate import Gate, names_of
from queenright.server.middleware.head import HeadMiddleware
from queenright.server.middleware.idempotency import Idempotency
from queenright.server.middleware.idempotency import describe as describe_keys
from queenright.server.middleware.shutdown import ShutdownMiddleware
from queenright.server.routes.api_page import add_api_page
from queenright.server.routes.approvals import add_approvals_api
from queenright.server.routes.callbacks import add_callbacks_api
from queenright.server.routes.chat import add_chat_api
from queenright.server.routes.events import add_events_api
from queenright.server.routes.health import add_health_api, health_answer
from queenright.server.routes.judge import add_judge_api
from queenright.server.routes.openapi import describe, says, takes
from queenright.server.routes.pagination import Cursor, Limit, json_answer, place_of
from queenright.server.routes.pagination import page as page_of
from queenright.server.routes.permissions import add_permissions_api
from queenright.server.routes.problems import add_problems
from queenright.server.routes.service import add_service_api
from queenright.server.routes.silences import add_silences_api
from queenright.server.routes.tickets import add_ticket_api
from queenright.server.service import Service
from queenright.server.views.view import notification_row, status

_READY: Final[dict[str, Any]] = {"ready": True, "missing": []}
_OK: Final[dict[str, Any]] = {"text/plain": {"schema": {"type": "string"}, "example": "ok\n"}}
_SYMPTOMS = {
    "type": "object",
    "required": ["version", "alerts"],
    "properties": {
        "version": {"const": "4"},
        "alerts": {
            "type": "array",
            "maxItems": MAX_ALERTS,
            "items": {
                "type": "object",
                "required": ["status", "labels"],
                "properties": {
                    "status": {"enum": ["firing", "resolved"]},
                    "labels": {
                        "type": "object",
                        "required": ["alertname"],
                        "properties": {
                            "alertname": {"type": "string", "minLength": 1, "maxLength": 200},
                            "agent": {"type": "string", "maxLength": 200},
                        },
                    },
                },
            },
        },
    },
    "examples": [
        {
            "version": "4",
            "status": "firing",
            "alerts": [
                {"status": "firing", "labels": {"alertname": "QueenrightStall", "agent": "researcher"}}
            ],
        }
    ],
}


def create_app(service: Service, *, bound: str, access: Access | None = None) -> FastAPI:
    """
    Return the ASGI app over one service.

    Args:
        service: What is asked.
        bound: The address that it listens on.
        access: Who is let in; by the service's settings without.
    """
    app = FastAPI(title="Queenright", docs_url=None, redoc_url=None, redirect_slashes=False)
    settings = service.settings
    names = names_of(settings.http.host, settings.alerting.console_url, bound=bound)
    # The last one that is added is the outermost.
    app.add_middleware(Etags)
    app.add_middleware(Idempotency, store=service.store, clock=service.clock)
    access = access or Access(settings, clock=service.clock)
    app.add_middleware(Guard, access=access, bound=bound, page=refusal_page)
    app.add_middleware(Gate, names=names)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(ShutdownMiddleware, stopping=service.stopping.is_set)
    add_problems(app)
    add_loaded_agents_api(app, service)
    add_health_api(app, service)
    add_events_api(app, service)
    add_approvals_api(app, service)
    add_permissions_api(app, service)
    add_ticket_api(app, service)
    add_chat_api(app, service)
    add_judge_api(app, service)
    add_callbacks_api(app, service)
    add_silences_api(app, service)
    add_service_api(app, service)
    # Greedy: their paths end in any name, with slashes in it.
    add_agents_themselves_api(app, service)
    add_login(app, access)
    add_api_page(app)
    add_console(app, service)

    # -- API ------------------------------------------------------------------------------------

    @app.get("/api/status", tags=["service"], **says("get_status", api.Status))
    async def api_status() -> Response:
        """Everything the status page shows; of many workers the worst."""
        return json_answer(status(service))

    @app.get("/api/notifications", tags=["tickets"], **says("list_notifications", api.NotificationsPage))
    async def api_notifications(limit: Limit = 50, cursor: Cursor = None) -> Response:
        """What was handed to Alertmanager and what was not yet, newest first; how the outbox is doing."""
        (before,) = place_of(cursor, "notifications", int) or (None,)
        now = service.clock()
        found = await service.store.read(
            lambda conn: list_notifications(conn, limit + 1, now=now, before=before)
        )
        outbox = service.outbox.status()
        return await page_of(
            "notifications",
            found,
            limit,
            row=lambda one: notification_row(one, outbox, now),
            place=lambda one: (one.id,),
            outbox=jsonable_encoder(outbox),
        )

    @app.post(
        "/api/alertmanager/webhook",
        tags=["the way back"],
        **says("record_symptoms", api.SymptomsTaken, status=202),
        openapi_extra=takes(_SYMPTOMS, what="What Alertmanager posts to a webhook."),
    )
    async def webhook(request: Request) -> dict[str, int]:
        """Symptom alerts from Prometheus: they wake the judge, they page nobody."""
        try:
            symptoms = parse_webhook(await request.body())
        except InvalidWebhookError as error:
            raise HTTPException(400, str(error)) from error
        for symptom in symptoms:
            if symptom.status == "firing":
                service.judging.wake(symptom.agent or None, reason=symptom.alertname)
        return {"symptoms": len(symptoms)}

    @app.post(
        "/api/deadman",
        tags=["the way back"],
        **says("record_watchdog", None, status=204, what="It is noted."),
    )
    async def deadman() -> None:
        """The Watchdog alert, back through Prometheus and Alertmanager: the whole chain works."""
        service.deadman_at = service.clock()

    @app.get(
        "/healthz",
        tags=["service"],
        response_class=PlainTextResponse,
        **says("get_alive", None, what="`ok`", content=_OK),
    )
    async def healthz() -> str:
        """The process lives."""
        return "ok\n"

    @app.get(
        "/readyz", tags=["service"], **says("get_ready", api.Ready, also={503: (api.Ready, "It does not.")})
    )
    async def readyz(request: Request) -> Response:
        """Whether it does its work; if not, what is missing: the words of that for callers who may look."""
        missing = service.ready()
        said = missing if may_look(request) else []
        return json_answer({"ready": not missing, "missing": said}, status=503 if missing else 200)

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        """Everything the service says of itself, in the format that the scraper asks for."""
        content_type = content_type_for(request.headers.get("accept", ""))
        return Response(await service.metrics.render(content_type), headers={"Content-Type": content_type})

    describe(app, describe_keys, add_access)
    add_short_ways(
        app,
        {
            "/healthz": lambda scope, _: PlainTextResponse("ok\n"),
            "/readyz": lambda scope, _: None if service.ready() else json_answer(_READY),
            "/api/agents/{agent}/health": lambda scope, agent: health_answer(service, agent),
        },
    )
    return app
