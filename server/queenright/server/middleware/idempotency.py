"""
Execute a request with an ``Idempotency-Key`` only once, even if it is retried after its response was lost.

The key is claimed in the store before the request is executed, and the response is stored before it is sent,
so that a retry gets the first response even after a restart. If the service is killed in between, the first
request may or may not have taken effect. The response to a retry says so.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import MutableMapping
from typing import Any, Final

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.health.store.keyed_requests import (
    KEPT_SECONDS,
    Claim,
    StoredResponse,
    claim,
    is_claimed,
    keep,
    release,
)
from queenright.health.store.store import Store, StoreError
from queenright.runtime.events import Clock
from queenright.server.access.caller import find_caller
from queenright.server.http.gateway_header import FIND_KEY, GATEWAY_HEADER
from queenright.server.http.methods import CHANGING_METHODS
from queenright.server.http.problems import make_problem_response

KEY_HEADER: Final = "Idempotency-Key"
REPLAYED_HEADER: Final = "Idempotent-Replayed"
MAX_KEY_LENGTH: Final = 255

_KEY_PATTERN: Final = re.compile(rf"[\x21-\x7e]{{1,{MAX_KEY_LENGTH}}}")
_HEADERS_NOT_STORED: Final = frozenset({"content-length", "date", "server", "set-cookie"})
_log = logging.getLogger(__name__)

_CallerKey = tuple[str, str]


class Idempotency:
    """
    ASGI middleware that executes requests with an ``Idempotency-Key`` under ``/api/`` only once.

    Args:
        app: The app behind it.
        store: Stores keys and responses.
        clock: Seconds since the epoch.
    """

    def __init__(self, app: ASGIApp, *, store: Store, clock: Clock) -> None:
        self._app = app
        self._store = store
        self._clock = clock
        self._running_keys: set[_CallerKey] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Execute a request with a key once; pass other requests to the app."""
        if scope["type"] == "http" and Headers(scope=scope).get(GATEWAY_HEADER) == FIND_KEY:
            await self._answer_key_lookup(scope, receive, send)
            return
        if (
            scope["type"] != "http"
            or scope["method"] not in CHANGING_METHODS
            or not scope["path"].startswith("/api/")
            or not (keys := Headers(scope=scope).getlist(KEY_HEADER))
        ):
            await self._app(scope, receive, send)
            return
        if len(keys) > 1 or not _KEY_PATTERN.fullmatch(keys[0]):
            refusal = (
                f"{KEY_HEADER} must be present once, with 1 to {MAX_KEY_LENGTH} visible ASCII characters"
            )
            await make_problem_response(400, refusal)(scope, receive, send)
            return
        try:
            body = await _read_body(receive)
        except HTTPException as error:
            await make_problem_response(error.status_code, str(error.detail))(scope, receive, send)
            return
        except _ClientGoneError:
            return
        await self._execute_once(
            (find_caller(HTTPConnection(scope)).key, keys[0]), body, scope, receive, send
        )

    async def _answer_key_lookup(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell a gateway whether this partition has executed the request with a key."""
        # A client may send this header too, without a key.
        caller, key = find_caller(HTTPConnection(scope)).key, Headers(scope=scope).get(KEY_HEADER, "")
        now = self._clock()
        try:
            is_known = await self._store.read(lambda conn: is_claimed(conn, caller, key, now))
        except StoreError as error:
            await make_problem_response(503, str(error))(scope, receive, send)
        else:
            await Response(status_code=204 if is_known else 404)(scope, receive, send)

    async def _execute_once(
        self, key: _CallerKey, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        digest, now = _hash_request(scope, body), self._clock()
        is_running = key in self._running_keys
        self._running_keys.add(key)
        try:
            earlier_claim = await self._store.transact(lambda conn: claim(conn, *key, digest, now))
            if earlier_claim is not None:
                await self._respond_again(earlier_claim, digest, is_running, scope, receive, send)
            else:
                await self._execute(key, scope, _replay_body(body, receive), send)
        except StoreError as error:
            await make_problem_response(503, f"nothing was done: {error}")(scope, receive, send)
        finally:
            if not is_running:
                self._running_keys.discard(key)

    async def _respond_again(
        self, earlier_claim: Claim, digest: str, is_running: bool, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Respond to a request whose key has already been used."""
        if earlier_claim.request != digest:
            refusal = f"this {KEY_HEADER} was used for another request; use a new key for each request"
            await make_problem_response(422, refusal)(scope, receive, send)
        elif earlier_claim.answer is not None:
            await _send_stored_response(earlier_claim.answer, send)
        elif is_running:
            response = make_problem_response(
                409, f"the request with this {KEY_HEADER} is still running; retry shortly"
            )
            response.headers["Retry-After"] = "1"
            await response(scope, receive, send)
        else:
            refusal = (
                f"the service stopped during the first request with this {KEY_HEADER}, which may or may not "
                "have taken effect; check whether it has, and if not, send it again with a new key"
            )
            await make_problem_response(409, refusal)(scope, receive, send)

    async def _execute(self, key: _CallerKey, scope: Scope, receive: Receive, send: Send) -> None:
        """Execute a request, store the response, and only then send it."""
        held_response = _HeldResponse(send)
        try:
            await self._app(scope, receive, held_response)
        except Exception:
            await self._release(key)
            raise
        answer = held_response.answer
        if answer is None or answer.status >= 500 or answer.status == 429:
            await self._release(key)
        else:
            try:
                await self._store.transact(lambda conn: keep(conn, *key, answer))
            except StoreError as error:
                # The request has taken effect, so send its response anyway.
                _log.error("the response to a request with an %s cannot be stored: %s", KEY_HEADER, error)
        await held_response.release()

    async def _release(self, key: _CallerKey) -> None:
        try:
            await self._store.transact(lambda conn: release(conn, *key))
        except StoreError as error:
            _log.error("an %s cannot be released: %s", KEY_HEADER, error)


class _ClientGoneError(Exception):
    """Raised when the client disconnects before its body is complete."""


async def _read_body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that replays a body, then continues with ``receive``."""
    is_replayed = False

    async def receive_again() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


class _HeldResponse:
    """Holds a response back, except an event stream, which it sends as it arrives."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._messages: list[Message] = []
        self._is_stream = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            content_type = Headers(raw=message["headers"]).get("content-type", "")
            self._is_stream = content_type.startswith("text/event-stream")
        if self._is_stream:
            await self._send(message)
        else:
            self._messages.append(message)

    @property
    def answer(self) -> StoredResponse | None:
        """The response; None if it was a stream, or if there was none."""
        if not self._messages:
            return None
        start, *body_messages = self._messages
        headers = Headers(raw=start["headers"]).items()
        return StoredResponse(
            start["status"],
            tuple((name, value) for name, value in headers if name not in _HEADERS_NOT_STORED),
            b"".join(message.get("body", b"") for message in body_messages),
        )

    async def release(self) -> None:
        for message in self._messages:
            await self._send(message)


async def _send_stored_response(answer: StoredResponse, send: Send) -> None:
    start: Message = {"type": "http.response.start", "status": answer.status, "headers": []}
    headers = MutableHeaders(scope=start)
    for name, value in answer.headers:
        headers.append(name, value)
    headers[REPLAYED_HEADER] = "true"
    if answer.status != 204:
        headers["Content-Length"] = str(len(answer.body))
    await send(start)
    await send({"type": "http.response.body", "body": answer.body})


def _hash_request(scope: Scope, body: bytes) -> str:
    content_type = Headers(scope=scope).get("content-type", "")
    digest = hashlib.sha256()
    for part in (
        scope["method"].encode(),
        scope["path"].encode(),
        scope["query_string"],
        content_type.encode(),
        body,
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def add_idempotency_header(schema: MutableMapping[str, Any]) -> None:
    """Add the header and its responses to the operations of an OpenAPI document."""
    header = {
        "name": KEY_HEADER,
        "in": "header",
        "required": False,
        "schema": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY_LENGTH,
            "pattern": "^[\\x21-\\x7e]+$",
        },
        "description": (
            f"A key for this request, such as a UUID. A request with the same key within "
            f"{KEPT_SECONDS / 3600:.0f} hours is not executed again; its first response is repeated with "
            f"`{REPLAYED_HEADER}: true`."
        ),
    }
    for path, operations in schema["paths"].items():
        if not path.startswith("/api/"):
            continue
        for method, operation in operations.items():
            if method.upper() not in CHANGING_METHODS:
                continue
            parameters = operation.setdefault("parameters", [])
            if not any(parameter.get("name") == KEY_HEADER for parameter in parameters):
                parameters.append(header)
            for status, description in (
                ("400", f"The {KEY_HEADER} is malformed, or the request is refused."),
                ("409", f"The request with this {KEY_HEADER} is still running, or was interrupted."),
                ("422", f"The {KEY_HEADER} was used for another request, or the request is not valid."),
                ("503", "Nothing was done: the store cannot be written to."),
            ):
                operation["responses"].setdefault(status, _make_problem_schema(description))


def _make_problem_schema(description: str) -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": reference}}}
