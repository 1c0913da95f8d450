"""
The gate before the API: who may ask, by what name, and how much may be said.

A browser asks on behalf of whatever page it shows. So other sites' pages may change nothing (``Origin``); and
while we listen on loopback only, nobody may call us by a name of another site, which its owner can let point
here to read along (DNS rebinding; ``Host``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.instrumentation.redaction import redact
from queenright.server.access.addresses import is_loopback
from queenright.server.access.headers import set_security_headers
from queenright.server.middleware.json_limits import JsonFormatError, JsonSizeError, check_json_size
from queenright.server.routes.problems import problem

MAX_BODY: Final = 1 << 20
MAX_VALUES: Final = 30_000
"""Values of JSON in a body: its opening brackets, commas and colons. To parse them takes up to 30 ms."""
_CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/?#@\\]+)(?::\d*)?")


def names_of(*places: str, bound: str) -> frozenset[str] | None:
    """
    Return by which names, besides those of loopback, a service may be called; None if any will do.

    Args:
        places: Names, addresses, or URLs that the settings call this service by.
        bound: The address it listens on. On any but loopback there may be names that no setting knows.
    """
    if not is_loopback(bound):
        return None
    hosts = (urlsplit(place).hostname if "://" in place else place for place in places)
    return frozenset(host.strip("[]").rstrip(".").lower() for host in hosts if host)


class Gate:
    """
    ASGI middleware that refuses before anything is done.

    Args:
        app: What is behind it.
        names: By what it may be called besides loopback's names; None: by any.
        limit: The longest body, in bytes, with or without a ``Content-Length``.
    """

    def __init__(self, app: ASGIApp, *, names: Iterable[str] | None, limit: int = MAX_BODY) -> None:
        self._app = app
        self._names = None if names is None else frozenset(names)
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                set_security_headers(MutableHeaders(scope=message))
            await send(message)

        headers = Headers(scope=scope)
        refused = (
            misnamed(headers.getlist("host"), self._names)
            or foreign(scope["method"], headers)
            or self._too_long(headers)
            or nul_in(scope["path"], scope["query_string"])
        )
        if refused is not None:
            await problem(*refused)(scope, receive, sending)
        else:
            await self._app(scope, _Counted(receive, self._limit), sending)

    def _too_long(self, headers: Headers) -> tuple[int, str] | None:
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._limit:
            return 413, f"the body has {length} bytes; {self._limit} are allowed"
        return None


class _Counted:
    """Receives a body that does not say how long it is, and no more of it, or in it, than is allowed."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit
        self._limit = limit
        self._parts: list[bytes] = []

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            part = message.get("body", b"")
            self._left -= len(part)
            if self._left < 0:
                # Whoever reads the body passes this on, and no other exception.
                raise HTTPException(413, f"the body is longer than {self._limit} bytes, which are allowed")
            self._parts.append(part)
            if not message.get("more_body", False):
                _check(b"".join(self._parts))
                self._parts.clear()
        return message


def _check(body: bytes) -> None:
    """Refuse a body that would take long to parse, whatever it says that it is."""
    try:
        check_json_size(body, MAX_VALUES)
    except JsonSizeError as error:
        raise HTTPException(413, f"{error}; send less at once, in several requests") from None
    except JsonFormatError as error:
        raise HTTPException(400, str(error)) from None


def misnamed(
    hosts: Iterable[str], names: frozenset[str] | None, *, setting: str = "alerting.console_url"
) -> tuple[int, str] | None:
    """
    Return the refusal of a request that calls us by a name which is not ours; ports do not matter.

    Args:
        hosts: What its ``Host`` headers say.
        names: By what we may be called besides loopback's names; None: by any.
        setting: Where to say that a name is ours.
    """
    if names is None:
        return None
    for host in hosts:
        found = _HOST.fullmatch(host)
        called = found[1].strip("[]").rstrip(".").lower() if found else ""
        if not (is_loopback(called) or called in names):
            return 403, (
                f"this service listens on this machine alone, and is not called {redact(host, 100)!r}; "
                f"use 127.0.0.1 or localhost, or say in {setting} by which name it is reached"
            )
    return None


def nul_in(path: str, query: bytes) -> tuple[int, str] | None:
    """
    Return the refusal of a request with a NUL in its address: PostgreSQL cannot be asked for such a name.

    Args:
        path: Decoded, as ASGI gives it.
        query: As it came.
    """
    for where, found in (("path", "\0" in path), ("query", b"%00" in query or b"\0" in query)):
        if found:
            return 400, f"there is a NUL character (%00) in the {where}, and in no name there is one"
    return None


def foreign(method: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
    """
    Return the refusal of a request that would change something and comes from another site's page.

    A browser says where the page is from in ``Origin``; programs say nothing, and are let pass.
    """
    origin = headers.get("origin")
    if method not in _CHANGING or origin is None:
        return None
    host = headers.get("host", "")
    if _address(origin) == _address(f"{_scheme(origin)}://{host}") is not None:
        return None
    return 403, (
        f"a page of {redact(origin, 100)} may not change anything here; "
        f"behind a proxy, let it pass on the Host header (it is {redact(host, 100)!r})"
    )


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def _address(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.hostname, port) if parts.hostname else None
