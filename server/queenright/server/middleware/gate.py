"""
Check the origin, the host and the size of every request, before authentication.

A browser sends requests on behalf of any page that it shows. ``Origin`` prevents a page of another site from
changing anything. While the service listens only on loopback, requests with another ``Host`` are refused,
because the owner of a domain could point it to 127.0.0.1 and read the responses (DNS rebinding).
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
from queenright.server.http.json_limits import JsonFormatError, JsonSizeError, check_json_size
from queenright.server.http.methods import CHANGING_METHODS
from queenright.server.http.problems import make_problem_response

MAX_BODY: Final = 1 << 20
MAX_VALUES: Final = 30_000
"""Maximum number of opening brackets, commas and colons in a JSON body. Parsing it takes up to 30 ms."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HOST_PATTERN: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/?#@\\]+)(?::\d*)?")


def list_accepted_hosts(*hosts_or_urls: str, bind_address: str) -> frozenset[str] | None:
    """
    Return the host names that the service accepts in addition to those of loopback; None if it accepts any.

    Args:
        hosts_or_urls: Names, addresses, or URLs of this service in the settings.
        bind_address: The address the port listens on. Unless it is loopback, clients may use names that no
            setting lists.
    """
    if not is_loopback(bind_address):
        return None
    hosts = (
        urlsplit(host_or_url).hostname if "://" in host_or_url else host_or_url
        for host_or_url in hosts_or_urls
    )
    return frozenset(host.strip("[]").rstrip(".").lower() for host in hosts if host)


class Gate:
    """
    ASGI middleware that checks the origin, the host and the size of a request, and adds security headers.

    Args:
        app: The app behind it.
        names: The host names to accept in addition to those of loopback; None to accept any.
        limit: The maximum size of a body, in bytes, with or without a ``Content-Length``.
    """

    def __init__(self, app: ASGIApp, *, names: Iterable[str] | None, limit: int = MAX_BODY) -> None:
        self._app = app
        self._names = None if names is None else frozenset(names)
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                set_security_headers(MutableHeaders(scope=message))
            await send(message)

        headers = Headers(scope=scope)
        refusal = (
            check_host(headers.getlist("host"), self._names)
            or check_origin(scope["method"], headers)
            or self._check_length(headers)
            or check_nul(scope["path"], scope["query_string"])
        )
        if refusal is not None:
            await make_problem_response(*refusal)(scope, receive, send_with_headers)
        else:
            await self._app(scope, _LimitedBody(receive, self._limit), send_with_headers)

    def _check_length(self, headers: Headers) -> tuple[int, str] | None:
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._limit:
            return 413, f"the body has {length} bytes; send at most {self._limit} per request"
        return None


class _LimitedBody:
    """Receives a body. Raises ``HTTPException`` if the body is too long or has too many values."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._remaining = limit
        self._limit = limit
        self._parts: list[bytes] = []

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            part = message.get("body", b"")
            self._remaining -= len(part)
            if self._remaining < 0:
                # FastAPI lets only this exception through when it reads a body.
                raise HTTPException(413, f"the body is longer than {self._limit} bytes; send less at once")
            self._parts.append(part)
            if not message.get("more_body", False):
                _check_json(b"".join(self._parts))
                self._parts.clear()
        return message


def _check_json(body: bytes) -> None:
    """Raise ``HTTPException`` for a body that would take long to parse as JSON, for any Content-Type."""
    try:
        check_json_size(body, MAX_VALUES)
    except JsonSizeError as error:
        raise HTTPException(413, f"{error}; send less at once, in several requests") from None
    except JsonFormatError as error:
        raise HTTPException(400, str(error)) from None


def check_host(
    hosts: Iterable[str], names: frozenset[str] | None, *, setting: str = "alerting.console_url"
) -> tuple[int, str] | None:
    """
    Return the error for a request with a host name that is not accepted, or None. Ports are ignored.

    Args:
        hosts: The ``Host`` headers of the request.
        names: The host names to accept in addition to those of loopback; None to accept any.
        setting: The setting that adds a name.
    """
    if names is None:
        return None
    for host in hosts:
        match = _HOST_PATTERN.fullmatch(host)
        host_name = match[1].strip("[]").rstrip(".").lower() if match else ""
        if not (is_loopback(host_name) or host_name in names):
            return 403, (
                f"this service listens on loopback only and does not accept the host {redact(host, 100)!r}; "
                f"use 127.0.0.1 or localhost, or set {setting} to the address that clients use"
            )
    return None


def check_nul(path: str, query: bytes) -> tuple[int, str] | None:
    """
    Return the error for a request with a NUL in its URL, or None. PostgreSQL does not accept NUL in names.

    Args:
        path: The decoded path, as in the ASGI scope.
        query: The raw query string.
    """
    for url_part, has_nul in (("path", "\0" in path), ("query", b"%00" in query or b"\0" in query)):
        if has_nul:
            return (
                400,
                f"the {url_part} contains a NUL character (%00); NUL characters are not allowed in names",
            )
    return None


def check_origin(method: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
    """
    Return the error for a change that another site's page requests, or None.

    A browser sends the origin of the page in ``Origin``; programs send none and are allowed.
    """
    origin = headers.get("origin")
    if method not in CHANGING_METHODS or origin is None:
        return None
    host = headers.get("host", "")
    if _parse_host_and_port(origin) == _parse_host_and_port(f"{_get_scheme(origin)}://{host}") is not None:
        return None
    return 403, (
        f"pages of {redact(origin, 100)} must not change anything here; "
        f"behind a proxy, configure it to forward the Host header (now {redact(host, 100)!r})"
    )


def _get_scheme(url: str) -> str:
    return url.partition("://")[0]


def _parse_host_and_port(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.hostname, port) if parts.hostname else None
