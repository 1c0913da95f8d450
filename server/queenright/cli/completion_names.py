"""
Names that a running service knows, for completing what is typed: workers, tickets, circuit breakers.

A key press waits for them, so they are asked for with the standard library alone and within a short time;
when there is no service, or no right to ask it, there are none, and nobody is told.
"""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import typer

LOCAL: Final = "http://127.0.0.1:8420"
_SECONDS: Final = 0.5
_MOST: Final = 200

# What a shell takes for one word as it stands: names that are written otherwise are typed by hand.
_WORD: Final = re.compile(r"[\w.:/@%+,-]+", re.ASCII)


def agents(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return workers that have not ended, each once, and their states."""
    found = _ask(context, f"/api/agents?limit={_MOST}", "agents")
    return _fit(
        ((row.get("agent_id"), row.get("state")) for row in found if not row.get("ended")), incomplete
    )


def tickets(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return open tickets, and what they are about."""
    found = _ask(context, f"/api/tickets?limit={_MOST}", "tickets")
    closed = ("resolved", "worker_gone", "dismissed")
    rows = (
        (row.get("ticket_id"), f"{row.get('severity')} {row.get('worker_agent_id')}")
        for row in found
        if row.get("status") not in closed
    )
    return _fit(rows, incomplete)


def breakers(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return circuit breakers, and their states."""
    found = _ask(context, f"/api/breakers?limit={_MOST}", "breakers")
    return _fit(((row.get("name"), row.get("state")) for row in found), incomplete)


def _fit(rows: Iterator[tuple[Any, Any]], incomplete: str) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for name, what in rows:
        if isinstance(name, str) and name.startswith(incomplete) and _WORD.fullmatch(name):
            # A worker has a row for each of its sessions.
            found.setdefault(name, str(what))
    return list(found.items())


def _ask(context: typer.Context, path: str, name: str) -> list[dict[str, Any]]:
    try:
        url = urlsplit(str(context.params.get("url") or os.environ.get("QUEENRIGHT_URL") or LOCAL))
        made = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = made(url.hostname or "", url.port, timeout=_SECONDS)
        try:
            connection.request("GET", url.path.rstrip("/") + path, headers=_headers(context))
            answer = connection.getresponse()
            return list(json.loads(answer.read())[name]) if answer.status == 200 else []
        finally:
            connection.close()
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return []


def _headers(context: typer.Context) -> dict[str, str]:
    file = context.params.get("token_file")
    token = None if file else os.environ.get("QUEENRIGHT_TOKEN")
    if not token and (file := file or os.environ.get("QUEENRIGHT_TOKEN_FILE")):
        with open(file, encoding="utf-8") as lines:
            token = lines.read()
    return {"Authorization": f"Bearer {token.strip()}"} if token and token.strip() else {}
