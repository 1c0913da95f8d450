"""The HTTP API and the status page. Thin: every route asks the service."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from jinja2 import Environment, FileSystemLoader, select_autoescape
from markdown_it import MarkdownIt

from queenright.alerting.files import runbook
from queenright.alerting.notification import handed_over
from queenright.alerting.webhook import WebhookRefused, parse_webhook
from queenright.health import event_log
from queenright.runtime.events import ALERT_CLASS
from queenright.server.approvals_api import add_approvals_api
from queenright.server.chat_api import add_chat_api
from queenright.server.gate import Gate, names_of
from queenright.server.health_api import add_health_api
from queenright.server.judge_api import add_judge_api
from queenright.server.paging import Cursor, Limit, place_of
from queenright.server.paging import page as page_of
from queenright.server.problems import add_problems
from queenright.server.service import Service
from queenright.server.ticket_api import add_ticket_api, found_ticket
from queenright.server.view import event_line, notification_row, status

_PAGES = Path(__file__).parent / "pages"
_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_REFRESH = 0.5


def create_app(service: Service, *, bound: str) -> FastAPI:
    """Return the ASGI app over one service; ``bound`` is the address that it listens on."""
    app = FastAPI(title="Queenright", docs_url="/docs", redoc_url=None)
    pages = Environment(loader=FileSystemLoader(_PAGES), autoescape=select_autoescape(default=True))
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")

    def page(template: str, **values: Any) -> HTMLResponse:
        return HTMLResponse(pages.get_template(template).render(**values))

    settings = service.settings
    names = names_of(settings.http.host, settings.alerting.console_url, bound=bound)
    app.add_middleware(Gate, names=names)
    add_problems(app)
    add_health_api(app, service)
    add_approvals_api(app, service)
    add_ticket_api(app, service)
    add_chat_api(app, service)
    add_judge_api(app, service)

    # -- pages ----------------------------------------------------------------------------------

    @app.get("/", include_in_schema=False)
    async def home() -> HTMLResponse:
        return page("status.html", status=status(service))

    @app.get("/live", include_in_schema=False)
    async def live(request: Request) -> StreamingResponse:
        """The status page's content, again whenever it changes, as server-sent events."""

        async def fragments() -> AsyncIterator[str]:
            before = ""
            while not service.stopping.is_set():
                html = pages.get_template("live.html").render(status=status(service))
                if html != before:
                    before = html
                    yield f"data: {json.dumps(html)}\n\n"
                try:
                    await asyncio.wait_for(service.stopping.wait(), _PAGE_REFRESH)
                except TimeoutError:
                    continue

        return StreamingResponse(
            fragments(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    @app.get("/tickets/{ticket_id}", include_in_schema=False)
    async def ticket_page(ticket_id: str) -> HTMLResponse:
        ticket = await found_ticket(service, ticket_id)
        events = await service.store.read(
            lambda connection: event_log.read_events(
                connection, types=ALERT_CLASS, agent_id=ticket["worker_agent_id"], limit=10_000
            )
        )
        about = [event_line(event) for _, event in events if _concerns(event.data, ticket_id)]
        asked = [one for one in service.approvals.pending() if one.ticket_id == ticket_id]
        return page("ticket.html", ticket=ticket, asked=asked, events=about)

    @app.get("/runbooks/{name}", include_in_schema=False)
    async def runbook_page(name: str) -> HTMLResponse:
        text = runbook(name) if re.fullmatch(r"[A-Za-z]{1,80}", name) else None
        if text is None:
            raise HTTPException(404, f"there is no runbook {name!r}")
        return page("runbook.html", name=name, body=markdown.render(text))

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        types = {"queenright.css": "text/css", "live.js": "text/javascript"}
        if name not in types:
            raise HTTPException(404, f"there is no file {name!r}")
        return Response((_PAGES / name).read_text("utf-8"), media_type=types[name])

    # -- API ------------------------------------------------------------------------------------

    @app.get("/api/status")
    async def api_status() -> dict[str, Any]:
        """Everything the status page shows."""
        return status(service)

    @app.get("/api/notifications")
    async def api_notifications(limit: Limit = 50, cursor: Cursor = None) -> Response:
        """What was handed to Alertmanager and what was not yet, newest first; how the outbox is doing."""
        (before,) = place_of(cursor, "notifications", int) or (None,)
        found = await service.store.read(lambda conn: handed_over(conn, limit + 1, before=before))
        outbox = service.outbox.status()
        now = service.clock()
        return await page_of(
            "notifications",
            found,
            limit,
            row=lambda one: notification_row(one, outbox, now),
            place=lambda one: (one.id,),
            outbox=jsonable_encoder(outbox),
        )

    @app.post("/api/alertmanager/webhook", status_code=202)
    async def webhook(request: Request) -> dict[str, int]:
        """Symptom alerts from Prometheus: they wake the judge, they page nobody."""
        try:
            symptoms = parse_webhook(await request.body())
        except WebhookRefused as error:
            raise HTTPException(400, str(error)) from error
        for symptom in symptoms:
            if symptom.status == "firing":
                service.judging.wake(symptom.agent or None, reason=symptom.alertname)
        return {"symptoms": len(symptoms)}

    @app.post("/api/deadman", status_code=204)
    async def deadman() -> None:
        """The Watchdog alert, back through Prometheus and Alertmanager: the whole chain works."""
        service.deadman_at = service.clock()

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """The process lives."""
        return "ok\n"

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Whether it does its work; if not, what is missing."""
        missing = service.ready()
        return JSONResponse({"ready": not missing, "missing": missing}, status_code=503 if missing else 200)

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(service.metrics.render(), headers={"Content-Type": _PROMETHEUS_TEXT})

    return app


def _concerns(data: Mapping[str, Any], ticket_id: str) -> bool:
    return ticket_id in (data.get("ticket_id"), data.get("ticket", {}).get("ticket_id"))
