"""The HTTP API and the status page. Thin: every route asks the service."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from jinja2 import Environment, FileSystemLoader, select_autoescape
from markdown_it import MarkdownIt

from queenright.alerting.files import runbook
from queenright.alerting.notification import handed_over
from queenright.alerting.webhook import WebhookRefused, parse_webhook
from queenright.health import event_log
from queenright.health.tickets import TicketClosed, TicketUnknown, WrongStatus
from queenright.runtime.events import ALERT_CLASS
from queenright.server.health_api import add_health_api
from queenright.server.problems import add_problems
from queenright.server.service import Service
from queenright.server.view import event_line, notification_row, status, ticket_row

_PAGES = Path(__file__).parent / "pages"
_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_REFRESH = 0.5
_MAX_WEBHOOK = 1 << 20


def create_app(service: Service) -> FastAPI:
    """Return the ASGI app over one service."""
    app = FastAPI(title="Queenright", docs_url="/docs", redoc_url=None)
    pages = Environment(loader=FileSystemLoader(_PAGES), autoescape=select_autoescape(default=True))
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")

    def page(template: str, **values: Any) -> HTMLResponse:
        return HTMLResponse(pages.get_template(template).render(**values))

    add_problems(app)
    add_health_api(app, service)

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
        ticket = await _ticket(ticket_id)
        events = await service.store.read(
            lambda connection: event_log.read_events(
                connection, types=ALERT_CLASS, agent_id=ticket["worker_agent_id"], limit=10_000
            )
        )
        about = [event_line(event) for _, event in events if _concerns(event.data, ticket_id)]
        return page("ticket.html", ticket=ticket, events=about)

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

    async def _ticket(ticket_id: str) -> dict[str, Any]:
        ticket = await service.tickets.find(ticket_id)
        if ticket is None:
            raise HTTPException(404, f"there is no ticket {ticket_id!r}")
        return ticket_row(ticket, service.clock())

    @app.get("/api/status")
    async def api_status() -> dict[str, Any]:
        """Everything the status page shows."""
        return status(service)

    @app.get("/api/tickets")
    async def api_tickets(limit: int = 100) -> dict[str, Any]:
        """Tickets, newest first, open or not."""
        now = service.clock()
        tickets = await service.tickets.history(max(1, min(limit, 1000)))
        return {"tickets": [ticket_row(ticket, now) for ticket in tickets], "next": None}

    @app.get("/api/tickets/{ticket_id}")
    async def api_ticket(ticket_id: str) -> dict[str, Any]:
        """One ticket."""
        return await _ticket(ticket_id)

    @app.post("/api/tickets/{ticket_id}/acknowledge")
    async def api_acknowledge(ticket_id: str) -> dict[str, Any]:
        """Say that a person has it in hand."""
        try:
            await service.tickets.acknowledge(ticket_id, by="operator")
        except TicketUnknown as error:
            raise HTTPException(404, str(error)) from error
        except (TicketClosed, WrongStatus) as error:
            raise HTTPException(409, str(error)) from error
        return await _ticket(ticket_id)

    @app.get("/api/notifications")
    async def api_notifications(limit: int = 50) -> dict[str, Any]:
        """What was handed to Alertmanager and what was not yet, newest first; how the outbox is doing."""
        most = max(1, min(limit, 1000))
        found = await service.store.read(lambda connection: handed_over(connection, most))
        outbox = service.outbox.status()
        now = service.clock()
        rows = [notification_row(notification, outbox, now) for notification in found]
        return {"outbox": outbox, "notifications": rows, "next": None}

    @app.post("/api/alertmanager/webhook", status_code=202)
    async def webhook(request: Request) -> dict[str, int]:
        """Symptom alerts from Prometheus: they wake the judge, they page nobody."""
        body = await request.body()
        if len(body) > _MAX_WEBHOOK:
            raise HTTPException(413, f"the body has {len(body)} bytes; {_MAX_WEBHOOK} are allowed")
        try:
            symptoms = parse_webhook(body)
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
