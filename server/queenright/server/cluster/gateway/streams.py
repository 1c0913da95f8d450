"""
Merge the event streams of all partitions into one.

Events of one partition keep their order. An event id of the merged stream has the positions in all logs, so
any process can resume the stream.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.server.cluster.gateway.ask import Reply
from queenright.server.cluster.gateway.kinds import read_agent_name
from queenright.server.middleware.connections import ABORT
from queenright.server.routes.pagination import InvalidCursorError, decode_cursor, encode_cursor

_CURSOR_LIST: Final = "events"
_ID_LINE: Final = re.compile(rb"^id: ?(.*)\n?", re.MULTILINE)
_KEEP_ALIVE: Final = b"event: alive\n"
_QUIET_SECONDS: Final = 10.0
"""Seconds of silence before a keep-alive is passed on. Each partition sends its own keep-alives."""
_STALL_SECONDS: Final = 30.0
"""Seconds after which a client that does not receive a chunk is disconnected."""
_END_SECONDS: Final = 0.1
"""Time for a client to receive the end of the stream."""
_MAX_ID_LENGTH: Final = 100
"""Maximum length of an unknown id that is passed to the partitions."""
_UNKNOWN_POSITION: Final = "unknown"
"""An unknown position. A partition answers it with a ``reset`` event."""


async def stream_events(
    apps: Sequence[ASGIApp],
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    clock: Callable[[], float] = time.monotonic,
    stall_seconds: float = _STALL_SECONDS,
) -> None:
    """
    Stream the events of all partitions until the client stops receiving or a partition ends its stream.

    If one partition knows the agent in the path, the others wait for events of that agent.

    Args:
        apps: The apps of the partitions.
        scope: The request.
        receive: Receives the client's disconnect.
        send: Sends the response.
        clock: A monotonic clock, in seconds.
        stall_seconds: How long the client may take to receive a chunk.
    """
    positions = _read_positions(scope, len(apps))
    merged_stream = _MergedStream(positions, send, clock=clock, stall_seconds=stall_seconds)
    disconnect_task = asyncio.create_task(_wait_for_disconnect(receive))
    parts = [
        _Part(app, _resume_scope(scope, position), number, merged_stream)
        for number, (app, position) in enumerate(zip(apps, positions, strict=True))
    ]
    try:
        try:
            if not await _begin(parts, merged_stream, scope, disconnect_task):
                return
            refusals = [part.get_refusal() for part in parts if part.status != 200]
            if refusals:
                await max(refusals, key=lambda reply: reply.status != 404).send(send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": parts[0].headers})
            await merged_stream.begin(parts[0].first_block)
            await asyncio.wait(
                [disconnect_task, *(part.task for part in parts)], return_when=asyncio.FIRST_COMPLETED
            )
            ended_tasks = [part.task for part in parts if part.task.done()]
        finally:
            await _cancel(part.task for part in parts)
        if disconnect_task.done():
            return
        if not merged_stream.is_stalled:
            for task in ended_tasks:
                # A part that breaks also breaks the response, so that the client notices.
                task.result()
        if not await merged_stream.end() and (abort := scope.get("extensions", {}).get(ABORT)) is not None:
            abort()
            await disconnect_task
    finally:
        await _cancel([disconnect_task])


class _MergedStream:
    """The response: blocks of all parts. The id of each block has the positions in all logs."""

    def __init__(
        self, positions: list[str], send: Send, *, clock: Callable[[], float], stall_seconds: float
    ) -> None:
        self._positions = positions
        self._send = send
        self._clock = clock
        self._stall_seconds = stall_seconds
        self._has_begun = asyncio.Event()
        # The parts take turns to send. A waiting part reads nothing.
        self._turn = asyncio.Lock()
        self._sent_at = clock()
        self.is_stalled = False
        """Whether the client failed to receive a chunk in time."""

    def begin_part(self, number: int, first_block: bytes) -> None:
        """Record the start position of a part from its first block, which contains no event."""
        if match := _ID_LINE.search(first_block):
            self._positions[number] = match[1].decode()

    async def begin(self, first_block: bytes) -> None:
        """
        Send the first block, then allow the parts to send theirs.

        Args:
            first_block: The first block of a part, which sets the reconnection time.
        """
        async with self._turn:
            await self._send_piece(
                _ID_LINE.sub(b"", first_block).rstrip(b"\n") + b"\n" + self._format_id_line() + b"\n"
            )
        self._has_begun.set()

    async def send_blocks(self, number: int, blocks: Sequence[bytes]) -> None:
        """
        Send blocks of a part, after waiting blocks of other parts.

        Raises:
            OSError: The client does not receive the blocks.
        """
        # An id before all positions are known would make a resuming client miss events.
        await self._has_begun.wait()
        async with self._turn:
            chunk = b"".join(self._add_positions(number, block) for block in blocks)
            if chunk:
                await self._send_piece(chunk)

    async def end(self) -> bool:
        """Send the end of the stream, and return whether the client has received it."""
        try:
            async with asyncio.timeout(0 if self.is_stalled else _END_SECONDS):
                await self._send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            return False
        return True

    def _add_positions(self, number: int, block: bytes) -> bytes:
        match = _ID_LINE.search(block)
        if match is not None:
            self._positions[number] = match[1].decode()
        if block.startswith(_KEEP_ALIVE) and self._clock() - self._sent_at < _QUIET_SECONDS:
            return b""
        if match is None:
            return block + b"\n\n"
        return block[: match.start()] + self._format_id_line() + block[match.end() :] + b"\n\n"

    def _format_id_line(self) -> bytes:
        return f"id: {encode_cursor(_CURSOR_LIST, *self._positions)}\n".encode()

    async def _send_piece(self, chunk: bytes) -> None:
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            self.is_stalled = True
            raise OSError("the client does not receive the event stream") from None
        self._sent_at = self._clock()


class _Part:
    """The stream of one partition. It starts when it is created."""

    def __init__(self, app: ASGIApp, scope: Scope, number: int, merged_stream: _MergedStream) -> None:
        self.app = app
        self.scope = scope
        self._number = number
        self._merged_stream = merged_stream
        self.ready = asyncio.Event()
        """Set once the first block or a refusal is received."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.first_block = b""
        """Its first block."""
        self._buffer = b""
        self.task = asyncio.create_task(self._run())

    def get_refusal(self) -> Reply:
        """Return the response of a partition that does not stream."""
        if not self.status:
            self.task.result()
        return Reply(self.status or 503, self.headers, self._buffer)

    async def _run(self) -> None:
        try:
            # This is cancelled when the client disconnects. A part must not abort the shared connection.
            await self.app({**self.scope, "extensions": {}}, _receive_nothing, self._receive_message)
        finally:
            self.ready.set()

    async def _receive_message(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
            return
        self._buffer += message.get("body", b"")
        if self.status != 200:
            return
        *blocks, self._buffer = self._buffer.split(b"\n\n")
        if blocks and not self.ready.is_set():
            self.first_block = blocks.pop(0)
            self._merged_stream.begin_part(self._number, self.first_block)
            self.ready.set()
        if blocks:
            await self._merged_stream.send_blocks(self._number, blocks)


async def _begin(
    parts: list[_Part], merged_stream: _MergedStream, scope: Scope, disconnect_task: asyncio.Task[None]
) -> bool:
    """
    Wait until all parts have started or failed. Return False if the client disconnects first.

    If a part knows the agent in the path, the others are replaced by streams that wait for it.
    """
    if not await _wait_ready(parts, disconnect_task):
        return False
    if all(part.status != 200 for part in parts):
        return True
    agent_id = read_agent_name(scope["path"], scope.get("raw_path"))
    for number, part in enumerate(parts):
        if part.status == 404:
            parts[number] = _Part(
                part.app, _follow_unknown_agent(part.scope, agent_id), number, merged_stream
            )
    return await _wait_ready(parts, disconnect_task)


async def _wait_ready(parts: Sequence[_Part], disconnect_task: asyncio.Task[None]) -> bool:
    ready = asyncio.gather(*(part.ready.wait() for part in parts))
    try:
        await asyncio.wait((ready, disconnect_task), return_when=asyncio.FIRST_COMPLETED)
        return not disconnect_task.done()
    finally:
        ready.cancel()


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    cancelled_tasks = list(tasks)
    for task in cancelled_tasks:
        task.cancel()
    await asyncio.gather(*cancelled_tasks, return_exceptions=True)


async def _receive_nothing() -> Message:
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await never


async def _wait_for_disconnect(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _read_positions(scope: Scope, count: int) -> list[str]:
    """Return the event id after which each partition resumes; "" to start now."""
    last_event_id = Headers(scope=scope).get("last-event-id") or dict(_parse_query(scope)).get("after")
    if not last_event_id:
        return [""] * count
    try:
        positions = decode_cursor(last_event_id, _CURSOR_LIST, *[str] * count) or ()
    except InvalidCursorError:
        # This is the id of an event: its partition resumes after it, and the others send a reset.
        return [last_event_id[:_MAX_ID_LENGTH]] * count
    return [position or _UNKNOWN_POSITION for position in positions]


def _resume_scope(scope: Scope, position: str) -> Scope:
    """Return the scope of a stream that resumes at a position."""
    query = [pair for pair in _parse_query(scope) if pair[0] != "after"]
    if position:
        query.append(("after", position))
    headers = [header for header in scope["headers"] if header[0] != b"last-event-id"]
    return {**scope, "query_string": urlencode(query).encode(), "headers": headers}


def _follow_unknown_agent(scope: Scope, agent_id: str) -> Scope:
    """Return the scope of a stream that waits for an unknown agent."""
    query = [pair for pair in _parse_query(scope) if pair[0] != "agent_id"]
    return {
        **scope,
        "path": "/api/events",
        "raw_path": b"/api/events",
        "query_string": urlencode([*query, ("agent_id", agent_id)]).encode(),
    }


def _parse_query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
