"""Send a request to the app of a partition, local or behind a proxy, and buffer its response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.server.http.gateway_header import GATEWAY_HEADER
from queenright.server.http.hop_by_hop import Header
from queenright.server.middleware.gate import MAX_BODY


class BodyTooLargeError(Exception):
    """Raised when a body is longer than `MAX_BODY`."""


class ClientGoneError(Exception):
    """Raised when the client disconnects before its request is complete."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete response."""

    status: int
    headers: Sequence[Header]
    body: bytes

    def json(self) -> Any:
        """Return the body, parsed as JSON."""
        return orjson.loads(self.body)

    async def send(self, send: Send) -> None:
        """Send the response to the client."""
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        await send({"type": "http.response.body", "body": self.body})


async def read_body(receive: Receive) -> bytes:
    """
    Return the body of a request.

    Raises:
        BodyTooLargeError: It is longer than `MAX_BODY`.
        ClientGoneError: The client has disconnected.
    """
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise BodyTooLargeError
        if not message.get("more_body", False):
            return b"".join(parts)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that replays a body, then continues with ``receive``."""
    is_read = False

    async def receive_again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def ask(app: ASGIApp, scope: Scope, receive: Receive) -> Reply:
    """Return the response of an app to a request."""
    status, headers, parts = 500, list[Header](), list[bytes]()

    async def collect(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(scope, receive, collect)
    return Reply(status, headers, b"".join(parts))


def make_get_scope(
    scope: Scope, *, path: str | None = None, query: bytes | None = None, mark: str = "1"
) -> Scope:
    """Return the scope of a GET request to a partition, by default with the same path and query."""
    headers = [
        header for header in scope["headers"] if header[0] not in (b"content-length", b"transfer-encoding")
    ]
    new_scope = {**mark_scope({**scope, "headers": headers}, mark), "method": "GET"}
    if path is not None:
        new_scope |= {"path": path, "raw_path": None}
    if query is not None:
        new_scope["query_string"] = query
    return new_scope


def mark_scope(scope: Scope, value: str = "1") -> Scope:
    """Return the scope of a request with the gateway's mark, for requests to several partitions."""
    return {**scope, "headers": [*scope["headers"], (GATEWAY_HEADER.encode(), value.encode())]}


def unmark_scope(scope: Scope) -> Scope:
    """Return the scope of a request without the mark, which a client must not set."""
    mark = GATEWAY_HEADER.encode()
    return {**scope, "headers": [header for header in scope["headers"] if header[0].lower() != mark]}


def make_json_reply(value: Any, original: Reply) -> Reply:
    """Return a response with a JSON body, and the status and the other headers of ``original``."""
    body = orjson.dumps(value)
    headers = [
        header
        for header in original.headers
        if header[0].lower() not in (b"content-length", b"content-encoding")
    ]
    return Reply(original.status, [*headers, (b"content-length", str(len(body)).encode())], body)
