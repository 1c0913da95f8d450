"""Forward requests to the process that owns a partition."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
from starlette.types import Receive, Scope, Send

from queenright.server.http.hop_by_hop import forward_headers

FORWARDED_HEADER: Final = b"x-queenright-forwarded"
"""Header of a request that a member has forwarded. It is not forwarded again."""

PARTITION_HEADER: Final = b"x-queenright-partition"
"""Header with the partition whose service answers a forwarded request."""

_BODY_HEADERS: Final = (b"content-length", b"transfer-encoding")
"""A request with one of these headers has a body."""

_CONNECT_SECONDS: Final = 2.0


class OwnerUnreachableError(Exception):
    """Raised when the owner does not begin to respond."""


class Proxy:
    """Forwards requests with unchanged headers and bodies. An instance belongs to one event loop."""

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
        headers = forward_headers(scope["headers"], without=frozenset({FORWARDED_HEADER, PARTITION_HEADER}))
        headers = [*headers, (FORWARDED_HEADER, b"1")]
        if partition is not None:
            headers.append((PARTITION_HEADER, str(partition).encode()))
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
        send_task = asyncio.create_task(self._client.send(request, stream=True))
        end_task = asyncio.create_task(asyncio.Event().wait() if end_event is None else end_event.wait())
        try:
            await asyncio.wait((send_task, end_task), return_when=asyncio.FIRST_COMPLETED)
            if not send_task.done():
                raise OwnerUnreachableError("another process is the owner now")
            return send_task.result()
        finally:
            end_task.cancel()
            if not send_task.done():
                send_task.cancel()
                with contextlib.suppress(asyncio.CancelledError, httpx.TransportError):
                    await send_task


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
    """Send a response until it ends or the client disconnects. ``end_event`` ends an event stream."""
    start: dict[str, Any] = {
        "type": "http.response.start",
        "status": response.status_code,
        # The server that sends the response sets date and server.
        "headers": forward_headers(response.headers.raw, without=frozenset({b"date", b"server"})),
    }
    await send(start)

    async def copy_body() -> None:
        async for chunk in response.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def watch_disconnect() -> None:
        while not disconnect_event.is_set():
            if (await receive())["type"] == "http.disconnect":
                disconnect_event.set()

    copy_task = asyncio.create_task(copy_body())
    tasks: list[asyncio.Task[Any]] = [copy_task, asyncio.create_task(watch_disconnect())]
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    if is_stream and end_event is not None:
        tasks.append(asyncio.create_task(end_event.wait()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        is_complete = copy_task.done()
        if is_complete:
            # A broken connection must break the response, so that the client notices.
            copy_task.result()
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.TransportError, OSError):
                await task
    if not is_complete and not disconnect_event.is_set():
        await send({"type": "http.response.body", "body": b""})
