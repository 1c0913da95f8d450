"""
Completion of names that a running service knows: workers, tickets, circuit breakers.

The user waits for it after a key press, so it uses the standard library alone and a short timeout. Without a
service or without access there are no proposals, and no error.
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

from queenright.client.address import LOCAL_URL

_TIMEOUT_SECONDS: Final = 0.5
_LIMIT: Final = 200
CLOSED_STATUSES: Final = ("resolved", "worker_gone", "dismissed")

# Names with other characters would need quoting, which differs between shells.
_PLAIN_NAME: Final = re.compile(r"[\w.:/@%+,-]+", re.ASCII)


def complete_agents(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return workers that have not ended, with their states."""
    rows = _request(context, "agents")
    return _match_rows(
        ((row.get("agent_id"), row.get("state")) for row in rows if not row.get("ended")), incomplete
    )


def complete_tickets(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return open tickets, with severity and worker."""
    rows = (
        (row.get("ticket_id"), f"{row.get('severity')} {row.get('agent_id')}")
        for row in _request(context, "tickets")
        if row.get("status") not in CLOSED_STATUSES
    )
    return _match_rows(rows, incomplete)


def complete_breakers(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return circuit breakers, with their states."""
    rows = _request(context, "breakers")
    return _match_rows(((row.get("name"), row.get("state")) for row in rows), incomplete)


def _match_rows(rows: Iterator[tuple[Any, Any]], incomplete: str) -> list[tuple[str, str]]:
    proposals: dict[str, str] = {}
    for name, description in rows:
        if isinstance(name, str) and name.startswith(incomplete) and _PLAIN_NAME.fullmatch(name):
            # A worker has one row per session.
            proposals.setdefault(name, str(description))
    return list(proposals.items())


def _request(context: typer.Context, name: str) -> list[dict[str, Any]]:
    try:
        url = urlsplit(str(context.params.get("url") or os.environ.get("QUEENRIGHT_URL") or LOCAL_URL))
        is_https = url.scheme == "https"
        connect = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
        connection = connect(url.hostname or "", url.port, timeout=_TIMEOUT_SECONDS)
        try:
            path = f"{url.path.rstrip('/')}/api/{name}?limit={_LIMIT}"
            connection.request("GET", path, headers=_read_headers(context))
            response = connection.getresponse()
            return list(json.loads(response.read())[name]) if response.status == 200 else []
        finally:
            connection.close()
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return []


def _read_headers(context: typer.Context) -> dict[str, str]:
    file = context.params.get("token_file")
    token = None if file else os.environ.get("QUEENRIGHT_TOKEN")
    if not token and (file := file or os.environ.get("QUEENRIGHT_TOKEN_FILE")):
        with open(file, encoding="utf-8") as lines:
            token = lines.read()
    return {"Authorization": f"Bearer {token.strip()}"} if token and token.strip() else {}
