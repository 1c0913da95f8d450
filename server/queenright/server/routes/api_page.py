"""
The page about the API, from its OpenAPI document: what there is, and what role it takes.

Of our own making, without a script: what a page of another maker's scripts may do here, whoever is logged in
may do, and those would come from somebody else's server.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, select_autoescape

from queenright.server.access.caller import caller_of
from queenright.server.console import forms

_PAGES: Final = Path(__file__).parents[1] / "pages"
_METHODS: Final = ("get", "post", "put", "delete")
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


def add_api_page(app: FastAPI) -> None:
    """Give the app the page ``/docs``."""
    router = APIRouter(include_in_schema=False)
    templates = Environment(loader=FileSystemLoader(_PAGES), autoescape=select_autoescape(default=True))

    @router.get("/docs")
    async def docs(request: Request) -> HTMLResponse:
        text = templates.get_template("api.html").render(
            here="/docs",
            you=forms.known_as(request),
            token=caller_of(request).name,
            said=None,
            groups=groups(app.openapi()),
        )
        return HTMLResponse(text, headers=_HEADERS)

    app.include_router(router)


def groups(document: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the operations of a document by their tag, as the page shows them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document.get("paths", {}).items():
        for method in _METHODS:
            if (one := operations.get(method)) is None:
                continue
            row = {
                "method": method.upper(),
                "path": path,
                "text": pieces(str(one.get("description") or one.get("summary") or "").split("\n\n")[0]),
                "role": one.get("x-role", ""),
                "asks": [
                    (given["name"], given["in"])
                    for given in one.get("parameters", ())
                    if given.get("in") in ("query", "header")
                ],
                "body": "requestBody" in one,
                "answers": sorted(one.get("responses", {})),
            }
            found.setdefault((one.get("tags") or ["service"])[0], []).append(row)
    return sorted(found.items())


def pieces(text: str) -> list[tuple[str, bool]]:
    """Return a text in pieces, and whether each is code: what is between backticks, one or two."""
    found = re.split(r"``?([^`]+)``?", text)
    return [(piece, bool(place % 2)) for place, piece in enumerate(found) if piece]
