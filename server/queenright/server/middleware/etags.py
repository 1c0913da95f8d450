"""
``ETag`` on responses that clients poll: a client that has the current one gets 304 without a body.

The tag of a response is a hash of its body. A response that says how long ago something was would have a new
tag every second: its route calls ``set_etag``, which leaves those fields out, so that the tag is a weak one.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, TypeVar

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.api.base_model import ApiModel, relative_fields

M = TypeVar("M", bound=ApiModel)

_POLLED: Final = re.compile(
    r"/api/(?:status|version|settings|emergency-stop|attention"
    r"|(?:agents|tickets|breakers|recoveries|interventions|escalations|approvals|silences|notifications)(?:/.*)?)",
    re.DOTALL,
)
_UNTAGGED: Final = re.compile(r"/(?:events|instructions)$")
"""Streams, and instructions, which are fetched once."""
_TAG: Final = re.compile(r'(?:W/)?("[^"]*")')


def set_etag(response: Response, model: M) -> M:
    """Set the ``ETag`` of a response from its model without the fields that are relative to now."""
    response.headers["ETag"] = etag_of(model.model_dump_json(exclude=relative_fields(type(model))).encode())
    return model


def etag_of(body: bytes) -> str:
    """Return the tag of a body."""
    return f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


class ETagMiddleware:
    """
    ASGI middleware that tags responses to GET, and responds with 304 to a client that has the current one.

    Args:
        app: The app behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tag the response of a path that is polled; pass on any other."""
        if scope["type"] != "http" or scope["method"] != "GET" or not is_polled(scope["path"]):
            await self._app(scope, receive, send)
            return
        known = Headers(scope=scope).get("if-none-match", "")
        start: Message | None = None

        async def send_tagged(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_taggable(message):
                start = message  # until the body shows whether it comes in one part
                return
            if start is not None:
                if not message.get("more_body", False):
                    message = {**message, "body": _tag(start, message.get("body", b""), known)}
                await send(start)
                start = None
            await send(message)

        await self._app(scope, receive, send_tagged)


def is_polled(path: str) -> bool:
    """Return whether responses to GET requests of a path have a tag."""
    return _POLLED.fullmatch(path) is not None and _UNTAGGED.search(path) is None


def matches(known: str, tag: str) -> bool:
    """Return whether a tag is among those of an ``If-None-Match``, weak or not."""
    return known.strip() == "*" or tag.removeprefix("W/") in _TAG.findall(known)


def _is_taggable(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return start["status"] == 200 and headers.get("content-type", "").startswith("application/json")


def _tag(start: Message, body: bytes, known: str) -> bytes:
    """Tag the start of a response; return the body to send."""
    headers = MutableHeaders(scope=start)
    tag = headers.setdefault("ETag", etag_of(body))
    headers.setdefault("Cache-Control", "private, no-cache")
    if not matches(known, tag):
        return body
    start["status"] = 304
    for name in ("content-length", "content-type"):
        del headers[name]
    return b""
