"""Stable URLs that messages, dashboards and runbooks link to: redirects to the console, and runbook pages."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from markdown_it import MarkdownIt
from starlette.staticfiles import StaticFiles

from queenright.alerting.files import read_runbook
from queenright.server.console.templates import PAGES, render_page

_REDIRECTS: Final = {
    "/": "/console/",
    "/sessions": "/console/",
    "/providers": "/console/",
    "/permissions": "/console/",
    "/permissions/{request_id}": "/console/",
    "/tickets": "/console/tickets",
    "/tickets/{ticket_id}": "/console/tickets/{ticket_id}",
    "/tickets/{ticket_id}/acknowledge": "/console/tickets/{ticket_id}",
    "/notifications": "/console/tickets",
    "/incidents": "/console/incidents",
    "/incidents/{incident_id}": "/console/incidents/{incident_id}",
    "/approvals": "/console/operate/actions",
    "/approvals/{approval_id}": "/console/operate/actions",
    "/escalations": "/console/operate/actions",
    "/escalations/{escalation_id}": "/console/operate/actions",
    "/interventions": "/console/operate/actions",
    "/breakers": "/console/operate/breakers",
    "/recoveries": "/console/operate/recoveries",
    "/silences": "/console/operate/silences",
    "/telemetry": "/console/operate/telemetry",
    "/settings": "/console/operate/settings",
    "/tokens": "/console/operate/tokens",
    "/audit": "/console/operate/audit",
    "/operate": "/console/operate/actions",
    "/talk": "/console/talk",
    "/connect": "/console/connect",
    "/events": "/console/operate/audit",
    "/api": "/docs",
    "/agents": "/console/",
    "/agents/{agent_id:path}": "/console/agents/{agent_id}",
}
"""
Stable paths, and the console page that each redirects to.

Query strings are kept. A trailing slash is accepted.
"""

router = APIRouter(include_in_schema=False)
_markdown: Final = MarkdownIt("commonmark", {"html": False}).enable("table")


def add_pages(app: FastAPI) -> None:
    """Add the redirects, runbook pages and static files to an app."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=PAGES / "static"))


def _add_redirect(source_path: str, target: str) -> None:
    @router.get(source_path)
    @router.get(f"{source_path.rstrip('/')}/")
    async def redirect(request: Request) -> RedirectResponse:
        path_values = {name: quote(text.rstrip("/"), safe="") for name, text in request.path_params.items()}
        path = target.format_map(path_values)
        return RedirectResponse(f"{path}?{request.url.query}" if request.url.query else path)


for source, target in _REDIRECTS.items():
    _add_redirect(source, target)


@router.get("/runbooks/{name}")
async def get_runbook(name: str) -> HTMLResponse:
    """Return the page of a runbook."""
    text = read_runbook(name) if re.fullmatch(r"[A-Za-z]{1,80}", name) else None
    if text is None:
        raise HTTPException(
            404,
            f"there is no runbook {name!r}; runbooks have the names of alerts, such as QueenrightMonitorDown",
        )
    # Runbooks link to each other as Markdown files. Turn these into links to pages.
    body = _markdown.render(re.sub(r"\]\((\w+)\.md\)", r"](\1)", text))
    return render_page("runbook.html", name=name, body=body)
