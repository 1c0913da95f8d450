"""Jinja2 templates of the server-rendered pages, and the headers of every page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, select_autoescape

PAGES: Final = Path(__file__).parents[1] / "pages"

_PAGE_HEADERS: Final = {
    # No script, no framing; forms post only to this origin.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_environment: Final = Environment(loader=FileSystemLoader(PAGES), autoescape=select_autoescape(default=True))


def render_error(status: int, fault: str) -> HTMLResponse:
    """Return an error page."""
    return render_page("error.html", status, fault=fault)


def render_page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return the page that a template renders."""
    html = _environment.get_template(template).render(status_code=status, **values)
    return HTMLResponse(html, status, headers=dict(_PAGE_HEADERS))
