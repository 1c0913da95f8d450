"""Forward requests to the process that owns a partition."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
from starlette.types import Receive, Scope, Send

from queenright.server.http.hop_by_hop import forward_headers

FORWARDED: Final = b"x-queenright-forwarded"
"""Header of a request that a member has forwarded. It is not forwarded again."""

PARTITION: Final = b"x-queenright-partition"
"""Header with the partition whose service answers a forwarded request."""

_BODY_HEADERS: Final = (b"content-length", b"transfer-encoding")
"""A request with one of these headers has a body."""

_CONNECT_SECONDS: Final = 2.0


class OwnerUnreachableError(Exception):
    """Raised when the owner does not start a response."""


class Proxy:
    """Forwards requests without changing headers and bodies. Has the connection pool of one event loop."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            # No read timeout: event streams may be silent, and the owner limits other requests.
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def forward(
        self,
        url: str,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        body: bytes | None = None,
        answer_seconds: float | None = None,
        end_event: asyncio.Event | None = None,
        partition: int | None = None,
    ) -> None:
        """
        Forward a request, and stream its response.

        Args:
            url: The base URL of the owner.
            scope: The request's scope.
            receive: Receives the body, unless ``body`` is given, and the client's disconnect.
            send: Sends the response.
            body: The body, if it has already been received.
            answer_seconds: Maximum seconds until the response starts; None for no limit.
            end_event: Set when the owner is lost, which may not close its connection. Ends the wait for a
                response, and an event stream.
            partition: The partition whose service should answer, if there are several.

        Raises:
            OwnerUnreachableError: The owner did not start a response.
        """
        headers = forward_headers(scope["headers"], without=frozenset({FORWARDED, PARTITION}))
        headers = [*headers, (FORWARDED, b"1")]
        if partition is not None:
            headers.append((PARTITION, str(partition).encode()))
        path = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"")
        target = httpx.URL(url).copy_with(raw_path=path + (b"?" + query if query else b""))
        disconnect_event = asyncio.Event()
        content: bytes | AsyncIterator[bytes] | None = body
        if body is None and any(name in _BODY_HEADERS for name, _ in scope["headers"]):
            content = _stream_body(receive, disconnect_event)
        # The client would add headers such as accept-encoding, so build the request here.
        request = httpx.Request(scope["method"], target, headers=headers, content=content)
        try:
            async with asyncio.timeout(answer_seconds):
                response = await self._send(request, end_event)
        except (httpx.TransportError, TimeoutError) as error:
            raise OwnerUnreachableError(str(error) or type(error).__name__) from error
        try:
            await _send_response(response, receive, send, disconnect_event, end_event)
        finally:
            await response.aclose()

    async def _send(self, request: httpx.Request, end_event: asyncio.Event | None) -> httpx.Response:
        """Return the response once it starts. Stop waiting if the owner is lost."""
        sending = asyncio.create_task(self._client.send(request, stream=True))
        end_task = asyncio.create_task(asyncio.Event().wait() if end_event is None else end_event.wait())
        try:
            await asyncio.wait((sending, end_task), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise OwnerUnreachableError("another process is the owner now")
            return sending.result()
        finally:
            end_task.cancel()
            if not sending.done():
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, httpx.TransportError):
                    await sending


async def _stream_body(receive: Receive, disconnect_event: asyncio.Event) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            disconnect_event.set()
            raise httpx.ReadError("the client disconnected")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


async def _send_response(
    response: httpx.Response,
    receive: Receive,
    send: Send,
    disconnect_event: asyncio.Event,
    end_event: asyncio.Event | None,
) -> None:
    """Send the response until it ends, the client disconnects, or its event stream is ended."""
    start: dict[str, Any] = {
        "type": "http.response.start",
        "status": response.status_code,
        # The server that sends the response sets date and server.
        "headers": forward_headers(response.headers.raw, without=frozenset({b"date", b"server"})),
    }
    await send(start)

    async def copy() -> None:
        async for piece in response.aiter_raw():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def watch() -> None:
        while not disconnect_event.is_set():
            if (await receive())["type"] == "http.disconnect":
                disconnect_event.set()

    copying = asyncio.create_task(copy())
    tasks: list[asyncio.Task[Any]] = [copying, asyncio.create_task(watch())]
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    if is_stream and end_event is not None:
        tasks.append(asyncio.create_task(end_event.wait()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        is_complete = copying.done()
        if is_complete:
            # A broken connection must break the response, so that the client notices.
            copying.result()
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.TransportError, OSError):
                await task
    if not is_complete and not disconnect_event.is_set():
        await send({"type": "http.response.body", "body": b""})
