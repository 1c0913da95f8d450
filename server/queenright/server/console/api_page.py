"""
The page ``/docs``, which lists the operations of the OpenAPI document and the role that each requires.

It has no script, so that no third-party code runs with the rights of the signed-in user.
"""

from __future__ import annotations

import re
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from queenright.server.console.templates import render_page

router = APIRouter(include_in_schema=False)

_METHODS: Final = ("get", "post", "put", "delete")


@router.get("/docs")
async def get_docs(request: Request) -> HTMLResponse:
    """Return the page as HTML."""
    return render_page("api.html", groups=group_operations(request.app.openapi()))


def group_operations(document: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the operations of an OpenAPI document as rows of the page, by tag."""
    groups_by_tag: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document.get("paths", {}).items():
        for method in _METHODS:
            if (details := operations.get(method)) is None:
                continue
            row = {
                "method": method.upper(),
                "path": path,
                "text": split_code_spans(
                    str(details.get("description") or details.get("summary") or "").split("\n\n")[0]
                ),
                "role": details.get("x-role", ""),
                "parameters": [
                    (parameter["name"], parameter["in"])
                    for parameter in details.get("parameters", ())
                    if parameter.get("in") in ("query", "header")
                ],
                "body": "requestBody" in details,
            }
            groups_by_tag.setdefault((details.get("tags") or ["service"])[0], []).append(row)
    return sorted(groups_by_tag.items())


def split_code_spans(text: str) -> list[tuple[str, bool]]:
    """Split a text into parts, each with whether it is code, between one or two backticks."""
    parts = re.split(r"``?([^`]+)``?", text)
    return [(part, bool(index % 2)) for index, part in enumerate(parts) if part]
