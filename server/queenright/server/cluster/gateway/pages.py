"""Merge pages of lists from all partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from queenright.server.cluster.gateway.ask import Reply, ask, make_get_scope, make_json_reply
from queenright.server.cluster.gateway.summaries import find_worst_breaker, merge_fields
from queenright.server.http.gateway_header import GATEWAY_HEADER
from queenright.server.routes.pagination import RowOrder, decode_cursor, encode_cursor, row_order


class RowOrderMiddleware:
    """
    ASGI middleware of a partition that adds the sort keys of rows to the pages that the gateway requests.

    Args:
        app: The app.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the sort keys to responses for the gateway; pass on other requests."""
        if scope["type"] != "http" or GATEWAY_HEADER not in Headers(scope=scope):
            await self._app(scope, receive, send)
            return
        order = RowOrder()
        token = row_order.set(order)
        try:
            reply = await ask(self._app, scope, receive)
        finally:
            row_order.reset(token)
        if order.what:
            reply = make_json_reply({"order": asdict(order), "page": orjson.Fragment(reply.body)}, reply)
        await reply.send(send)


async def fetch_merged_page(apps: Sequence[ASGIApp], scope: Scope, receive: Receive) -> Reply:
    """
    Return a page of a list with the rows of all partitions.

    Args:
        apps: The apps of the partitions.
        scope: The request.
        receive: Receives the client's disconnect.

    Raises:
        InvalidCursorError: The cursor belongs to another list or to a cluster with another number of
            partitions.
    """
    parameters = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    cursor = next((value for name, value in parameters if name == "cursor"), None)
    other_parameters = [(name, value) for name, value in parameters if name != "cursor"]
    list_name = scope["path"].rpartition("/")[2]
    position = decode_cursor(cursor, list_name, *[str] * len(apps)) or ("",) * len(apps)
    scopes = [
        make_get_scope(
            scope, query=urlencode([*other_parameters, *[("cursor", after)] * bool(after)]).encode()
        )
        for after in position
    ]
    replies = await ask_all(apps, scopes, receive)
    ok_replies = [reply for reply in replies if reply.status == 200]
    if len(ok_replies) < len(replies):
        refusals = [reply for reply in replies if reply.status not in (200, 404)]
        if refusals or not ok_replies:
            return (refusals or replies)[0]
    return make_json_reply(_merge(replies, list_name, position), ok_replies[0])


async def ask_all(apps: Sequence[ASGIApp], scopes: Sequence[Scope], receive: Receive) -> list[Reply]:
    """Send each app its request, and return the responses."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(app, scope, receive)) for app, scope in zip(apps, scopes, strict=True)]
    return [task.result() for task in tasks]


def _merge(replies: Sequence[Reply], list_name: str, position: Sequence[str]) -> dict[str, Any]:
    """Merge the first rows of all pages. The cursor contains a cursor for each partition."""
    partition_pages = [
        _Page(number, reply, after)
        for number, (reply, after) in enumerate(zip(replies, position, strict=True))
    ]
    pages = [page for page in partition_pages if page.is_known]
    first_page = pages[0]
    rows: list[Any] = []
    while len(rows) < first_page.limit:
        remaining_pages = [page for page in pages if page.has_row]
        if not remaining_pages:
            break
        next_page = (max if first_page.is_descending else min)(remaining_pages, key=lambda page: page.rank)
        if first_page.list_name == "breakers":
            # Positions are names, which several partitions may share.
            equal_pages = [page for page in remaining_pages if page.rank == next_page.rank]
            rows.append(find_worst_breaker([page.take() for page in equal_pages]))
        else:
            rows.append(next_page.take())
    has_more = any(page.has_row or page.has_more for page in pages)
    fields = merge_fields([page.fields for page in pages])
    return fields | {
        first_page.list_name: rows[::-1] if first_page.is_backwards else rows,
        "next": encode_cursor(list_name, *(page.after for page in partition_pages)) if has_more else None,
    }


class _Page:
    """The page of one partition. Its rows are taken in order."""

    def __init__(self, number: int, reply: Reply, after: str) -> None:
        self._number = number
        self.after = after
        """The cursor of the last row taken."""
        self.is_known = reply.status == 200
        if not self.is_known:
            return
        value = reply.json()
        order = RowOrder(**value["order"])
        self.fields: dict[str, Any] = value["page"]
        self.list_name, self.limit = order.what, order.limit
        self.is_descending, self.is_backwards = order.is_descending, order.is_backwards
        self.has_more = self.fields.pop("next") is not None
        rows = self.fields.pop(order.what)
        if order.is_backwards:
            rows = rows[::-1]
        self._rows = list(zip(order.ranks, order.cursors, rows, strict=True))
        self._taken_count = 0

    @property
    def has_row(self) -> bool:
        """Whether there is another row."""
        return self._taken_count < len(self._rows)

    @property
    def rank(self) -> list[float | int | str]:
        """The sort key of the next row."""
        return self._rows[self._taken_count][0]

    def take(self) -> Any:
        """Return the next row. Set the number of its partition, which the partition itself does not know."""
        _, self.after, row = self._rows[self._taken_count]
        self._taken_count += 1
        if "partition" in row:
            row["partition"] = self._number
        return row
