"""Find the items in all partitions that match an abbreviated id in a path."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Receive, Scope

from queenright.server.cluster.gateway.ask import Reply, ask, make_get_scope

_ID_PATH_PATTERN: Final = re.compile(
    r"/api/(tickets|silences|approvals|escalations|permissions)/([^/]+)(/(approve|deny|decision|answer))?"
)
_UUID_PATTERN: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ID_FIELDS: Final = {
    "tickets": "ticket_id",
    "silences": "silence_id",
    "approvals": "approval_id",
    "escalations": "escalation_id",
    "permissions": "request_id",
}
_PAGE_QUERY: Final = "open=true&limit=1000"

Matches = dict[str, str]
"""Ids, each with a name that people recognize."""


class ShortId(NamedTuple):
    """An abbreviated id, and the list whose rows it may match."""

    list_name: str
    prefix: str

    @property
    def item_type(self) -> str:
        """The kind of item, in the plural, for error messages."""
        return "requests" if self.list_name == "permissions" else self.list_name


def find_short_id(path: str) -> ShortId | None:
    """Return the abbreviated id in a path; None if the path has no id or a complete id."""
    match = _ID_PATH_PATTERN.fullmatch(path)
    return None if match is None or _UUID_PATTERN.fullmatch(match[2]) else ShortId(match[1], match[2])


async def find_matches(
    apps: Sequence[ASGIApp], short_id: ShortId, scope: Scope, receive: Receive
) -> list[Matches | Reply | None]:
    """
    Return the matches of an abbreviated id in each partition, or the error response of a partition.

    Matches are None if the owner has an older version that cannot list them.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_list_matches(app, short_id, scope, receive)) for app in apps]
    return [task.result() for task in tasks]


async def _list_matches(
    app: ASGIApp, short_id: ShortId, scope: Scope, receive: Receive
) -> Matches | Reply | None:
    matches: Matches = {}
    # There may be too many tickets to list. For the gateway, a partition lists only matching tickets.
    path = None if short_id.list_name == "tickets" else f"/api/{short_id.list_name}"
    query = _PAGE_QUERY
    while True:
        reply = await ask(app, make_get_scope(scope, path=path, query=query.encode()), receive)
        if reply.status in (404, 409):
            # An older version looks up a single ticket instead.
            return None
        if reply.status != 200:
            return reply
        value: dict[str, Any] = reply.json()
        page = value.get("page", value)
        if short_id.list_name not in page:
            return None
        for row in page[short_id.list_name]:
            id_: str = row[_ID_FIELDS[short_id.list_name]]
            if id_.startswith(short_id.prefix):
                matches[id_] = row["agent_id"] if "agent_id" in row else row["comment"][:80]
        if page.get("next") is None:
            return matches
        query = f"{_PAGE_QUERY}&cursor={page['next']}"
