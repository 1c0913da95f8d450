"""Jinja2 templates of the pages, and the headers that every page has."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, select_autoescape

from queenright.instrumentation.counts import format_count
from queenright.instrumentation.money import format_spend
from queenright.server.access.caller import caller_of
from queenright.server.console import forms
from queenright.server.views.formatting import ago, clock_time, moment

PAGES: Final = Path(__file__).parents[1] / "pages"

_HEADERS: Final = {
    # Only our own script, whatever a worker is called; forms post to us only; no framing.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_environment: Final = Environment(loader=FileSystemLoader(PAGES), autoescape=select_autoescape(default=True))
_environment.globals |= {
    "ago": ago,
    "agent_page": forms.agent_page,
    "count": format_count,
    "spent": format_spend,
}
_environment.filters |= {"part": forms.part, "clock": clock_time, "moment": moment, "number": "{:,}".format}


def render_error(request: Request, status: int, fault: str) -> Response:
    """Return the page of an error."""
    return render(request, "error.html", status_code=status, fault=fault)


def render(request: Request, template: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    """Return a page, with the message that the form before it left."""
    message = forms.previous_message(request)
    html = _environment.get_template(template).render(
        here=request.url.path,
        you=forms.known_name(request),
        token=caller_of(request).name,
        said=message,
        status_code=status_code,
        **values,
    )
    response = HTMLResponse(html, status_code, headers=dict(_HEADERS))
    if message is not None:
        forms.delete_message(response)
    return response
