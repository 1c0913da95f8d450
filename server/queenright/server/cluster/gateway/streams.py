"""
The events of all partitions as one stream.

An event keeps its order among those of its partition. The id of the merged stream has the position in each
partition's log, so that it is resumed at any process.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.server.cluster.gateway.ask import Reply
from queenright.server.routes.pagination import InvalidCursorError, cursor_at, place_of

_LIST: Final = "events"
_ID_LINE: Final = re.compile(rb"^id: ?(.*)$", re.MULTILINE)
_LAST_EVENT_ID: Final = "last-event-id"
_WAITING: Final = 64
"""Pieces that wait for a slow client before the partitions do."""


async def stream_events(apps: Sequence[ASGIApp], scope: Scope, receive: Receive, send: Send) -> None:
    """
    Stream the events of all partitions until the client disconnects, or one of the streams ends.

    A partition that does not know the agent which the path names is left out.

    Args:
        apps: The apps of the partitions.
        scope: The request.
        receive: Receives the client's disconnect.
        send: Sends the response.
    """
    parts = [_Part(app) for app in apps]
    positions = _read_positions(scope, len(parts))
    is_over = asyncio.Event()
    pieces: asyncio.Queue[tuple[int, bytes | None]] = asyncio.Queue(_WAITING)
    tasks = [
        asyncio.create_task(part.run(number, _resumed(scope, position), pieces, is_over))
        for number, (part, position) in enumerate(zip(parts, positions, strict=True))
    ]
    tasks.append(asyncio.create_task(_wait_for_disconnect(receive, is_over)))
    try:
        await asyncio.wait([asyncio.ensure_future(part.begun.wait()) for part in parts])
        refusals = [part.refusal() for part in parts if part.status != 200]
        if any(reply.status != 404 for reply in refusals) or len(refusals) == len(parts):
            await max(refusals, key=lambda reply: reply.status != 404).send(send)
            return
        followed = [part for part in parts if part.status == 200]
        await send({"type": "http.response.start", "status": 200, "headers": followed[0].headers})
        await _merge(pieces, positions, is_over, send)
    finally:
        is_over.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _merge(
    pieces: asyncio.Queue[tuple[int, bytes | None]], positions: list[str], is_over: asyncio.Event, send: Send
) -> None:
    """Send the blocks of all streams, each with the id of the merged stream, until one ends."""
    rests: dict[int, bytes] = {}
    over = asyncio.ensure_future(is_over.wait())
    try:
        while True:
            getting = asyncio.ensure_future(pieces.get())
            await asyncio.wait((getting, over), return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                getting.cancel()
                return
            number, piece = getting.result()
            if piece is None:
                break
            *blocks, rests[number] = (rests.get(number, b"") + piece).split(b"\n\n")
            body = b"".join(_with_positions(block, number, positions) + b"\n\n" for block in blocks)
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        over.cancel()


def _with_positions(block: bytes, number: int, positions: list[str]) -> bytes:
    """Return a block with the positions in all logs as its id, if it has one."""
    found = _ID_LINE.search(block)
    if found is None:
        return block
    positions[number] = found[1].decode()
    line = b"id: " + cursor_at(_LIST, *positions).encode()
    return block[: found.start()] + line + block[found.end() :]


class _Part:
    """The stream of one partition."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.begun = asyncio.Event()
        """Set once its status is known, and its body if it is refused."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._refused = b""

    def refusal(self) -> Reply:
        """Return the response of a partition that does not stream."""
        return Reply(self.status, self.headers, self._refused)

    async def run(
        self,
        number: int,
        scope: Scope,
        pieces: asyncio.Queue[tuple[int, bytes | None]],
        is_over: asyncio.Event,
    ) -> None:
        """Put its pieces into the queue, and None at its end."""

        async def wait_for_end() -> Message:
            await is_over.wait()
            return {"type": "http.disconnect"}

        async def take(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], list(message.get("headers", ()))
                if self.status == 200:
                    self.begun.set()
            elif self.status == 200:
                await pieces.put((number, message.get("body", b"")))
            else:
                self._refused += message.get("body", b"")

        try:
            await self._app(scope, wait_for_end, take)
        finally:
            self.status = self.status or 503
            if self.status == 200:
                await pieces.put((number, None))
            self.begun.set()


async def _wait_for_disconnect(receive: Receive, is_over: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    is_over.set()


def _read_positions(scope: Scope, count: int) -> list[str]:
    """Return the event id after which to resume in each partition; empty: now."""
    after = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("after")
    given = Headers(scope=scope).get(_LAST_EVENT_ID) or after
    if not given:
        return [""] * count
    try:
        return list(place_of(given, _LIST, *[str] * count) or ())
    except InvalidCursorError:
        # The id of one event: the partition that has it resumes there, the others say that they cannot.
        return [given] * count


def _resumed(scope: Scope, position: str) -> Scope:
    """Return the scope of a stream that resumes at a position."""
    query = [
        pair
        for pair in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if pair[0] != "after"
    ]
    headers = [header for header in scope["headers"] if header[0] != _LAST_EVENT_ID.encode()]
    if position:
        headers.append((_LAST_EVENT_ID.encode(), position.encode("latin-1", "replace")))
    return {**scope, "query_string": urlencode(query).encode(), "headers": headers}
