"""
``Idempotency-Key``: an action that is asked for again, because its answer was lost, is not done again.

The key is claimed in the store before anything is done, and the answer is kept there before it is sent: over
a restart, too, the second asking gets the first one's answer. Of a request that a kill cut off in between,
nobody can say whether it was done; whoever asks again is told so.
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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.health.keyed_requests import KEPT_SECONDS, Answer, Claim, claim, keep, release
from queenright.health.store import Store, StoreError
from queenright.runtime.events import Clock
from queenright.server.access.caller import caller_of
from queenright.server.routes.problems import problem

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
LONGEST: Final = 255
CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})

_KEY: Final = re.compile(rf"[\x21-\x7e]{{1,{LONGEST}}}")
_UNKEPT: Final = frozenset({"content-length", "date", "server", "set-cookie"})
_log = logging.getLogger(__name__)

_Key = tuple[str, str]


class Idempotency:
    """
    ASGI middleware before the routes under ``/api/``.

    Args:
        app: What is behind it.
        store: Where keys and answers are kept.
        clock: Seconds since the epoch.
    """

    def __init__(self, app: ASGIApp, *, store: Store, clock: Clock) -> None:
        self._app = app
        self._store = store
        self._clock = clock
        self._under_way: set[_Key] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do a request with a key once, and pass on any other."""
        if (
            scope["type"] != "http"
            or scope["method"] not in CHANGING
            or not scope["path"].startswith("/api/")
            or not (said := Headers(scope=scope).getlist(HEADER))
        ):
            await self._app(scope, receive, send)
            return
        if len(said) > 1 or not _KEY.fullmatch(said[0]):
            refusal = f"{HEADER} must be given once, as 1 to {LONGEST} visible ASCII characters"
            await problem(400, refusal)(scope, receive, send)
            return
        try:
            body = await _whole(receive)
        except HTTPException as error:
            await problem(error.status_code, str(error.detail))(scope, receive, send)
            return
        except _GoneError:
            return
        await self._once((caller_of(HTTPConnection(scope)).key, said[0]), body, scope, receive, send)

    async def _once(self, key: _Key, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        asked, now = _hash(scope, body), self._clock()
        under_way = key in self._under_way
        self._under_way.add(key)
        try:
            taken = await self._store.transact(lambda conn: claim(conn, *key, asked, now))
            if taken is not None:
                await self._again(taken, asked, under_way, scope, receive, send)
            else:
                await self._do(key, scope, _again(body, receive), send)
        except StoreError as error:
            await problem(503, f"nothing was done: {error}")(scope, receive, send)
        finally:
            if not under_way:
                self._under_way.discard(key)

    async def _again(
        self, taken: Claim, asked: str, under_way: bool, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request whose key was used before."""
        if taken.request != asked:
            refusal = f"this {HEADER} was used for another request; each request needs a key of its own"
            await problem(422, refusal)(scope, receive, send)
        elif taken.answer is not None:
            await _replay(taken.answer, send)
        elif under_way:
            response = problem(409, f"the request with this {HEADER} is still being done; ask again shortly")
            response.headers["Retry-After"] = "1"
            await response(scope, receive, send)
        else:
            refusal = (
                f"the first request with this {HEADER} was cut off by a stop of the service: it may be "
                "done or not. Look whether it was; if not, ask with another key"
            )
            await problem(409, refusal)(scope, receive, send)

    async def _do(self, key: _Key, scope: Scope, receive: Receive, send: Send) -> None:
        """Do it, keep what it is answered, and only then answer."""
        answer = _Held(send)
        try:
            await self._app(scope, receive, answer)
        except Exception:
            await self._let_go(key)
            raise
        found = answer.answer
        if found is None or found.status >= 500 or found.status == 429:
            await self._let_go(key)
        else:
            try:
                await self._store.transact(lambda conn: keep(conn, *key, found))
            except StoreError as error:
                # It has been done, and that is what the caller must hear.
                _log.error("the answer to a request with an %s could not be kept: %s", HEADER, error)
        await answer.release()

    async def _let_go(self, key: _Key) -> None:
        try:
            await self._store.transact(lambda conn: release(conn, *key))
        except StoreError as error:
            _log.error("an %s could not be let go of: %s", HEADER, error)


class _GoneError(Exception):
    """Whoever asked has hung up before all was said."""


async def _whole(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that has been read, and after it what comes."""
    said = False

    async def given() -> Message:
        nonlocal said
        if said:
            return await receive()
        said = True
        return {"type": "http.request", "body": body, "more_body": False}

    return given


class _Held:
    """Takes an answer and holds it back; one that is a stream of events it passes on as it comes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._messages: list[Message] = []
        self._streams = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = Headers(raw=message["headers"]).get("content-type", "")
            self._streams = kind.startswith("text/event-stream")
        if self._streams:
            await self._send(message)
        else:
            self._messages.append(message)

    @property
    def answer(self) -> Answer | None:
        """What was answered; None if it was a stream, or nothing."""
        if not self._messages:
            return None
        start, *rest = self._messages
        headers = Headers(raw=start["headers"]).items()
        return Answer(
            start["status"],
            tuple((name, value) for name, value in headers if name not in _UNKEPT),
            b"".join(message.get("body", b"") for message in rest),
        )

    async def release(self) -> None:
        for message in self._messages:
            await self._send(message)


async def _replay(answer: Answer, send: Send) -> None:
    start: Message = {"type": "http.response.start", "status": answer.status, "headers": []}
    headers = MutableHeaders(scope=start)
    for name, value in answer.headers:
        headers.append(name, value)
    headers[REPLAYED] = "true"
    if answer.status != 204:
        headers["Content-Length"] = str(len(answer.body))
    await send(start)
    await send({"type": "http.response.body", "body": answer.body})


def _hash(scope: Scope, body: bytes) -> str:
    kind = Headers(scope=scope).get("content-type", "")
    said = hashlib.sha256()
    for part in (
        scope["method"].encode(),
        scope["path"].encode(),
        scope["query_string"],
        kind.encode(),
        body,
    ):
        said.update(len(part).to_bytes(8, "big") + part)
    return said.hexdigest()


def describe(schema: MutableMapping[str, Any]) -> None:
    """Add the header, and what is answered because of it, to the operations of an OpenAPI document."""
    header = {
        "name": HEADER,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST, "pattern": "^[\\x21-\\x7e]+$"},
        "description": (
            f"A name for this request, such as a UUID. Asked again with the same name within "
            f"{KEPT_SECONDS / 3600:.0f} hours, it is not done again, and its first answer comes again, with "
            f"`{REPLAYED}: true`."
        ),
    }
    for path, operations in schema["paths"].items():
        if not path.startswith("/api/"):
            continue
        for method, operation in operations.items():
            if method.upper() not in CHANGING:
                continue
            parameters = operation.setdefault("parameters", [])
            if not any(one.get("name") == HEADER for one in parameters):
                parameters.append(header)
            for status, why in (
                ("400", f"The {HEADER} is none, or the request is refused."),
                ("409", f"The request with this {HEADER} is still being done, or was cut off."),
                ("422", f"The {HEADER} was used for another request, or the request is not valid."),
                ("503", "Nothing was done: the store cannot be written to."),
            ):
                operation["responses"].setdefault(status, _as_problem(why))


def _as_problem(why: str) -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/Problem"}
    return {"description": why, "content": {"application/problem+json": {"schema": reference}}}
