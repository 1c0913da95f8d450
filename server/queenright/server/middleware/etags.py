"""
``ETag`` on what is polled: who has it already is answered 304, without the whole of it.

What says how long ago something was changes with the clock alone; what is left is what a tag stands for,
and it is weak therefore. Everything else counts: a tag cannot be behind what it stands for.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLLED: Final = re.compile(
    r"/api/(?:status|version|settings|emergency-stop"
    r"|(?:agents|tickets|breakers|recoveries|interventions|escalations|approvals|silences|notifications)(?:/.*)?)",
    re.DOTALL,
)
_UNTAGGED: Final = re.compile(r"/(?:events|instructions)$")
"""Streams, and what is fetched once."""
_OF_THE_CLOCK: Final = re.compile(
    rb'"(?:age|now|up_for|state_for|active_ago|progress_ago|trouble_for|acted_ago|half_open_in|when)":"[^"]*"'
    rb'|"(?:free_at|uptime_seconds)":[-0-9.e+]+'
)
"""In JSON, a quote within a text has a backslash before it: this finds nothing that somebody said."""
_TAG: Final = re.compile(r'(?:W/)?("[^"]*")')


class Etags:
    """ASGI middleware: tags answers to GET, and answers 304 to who has one of that tag."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tag an answer that is polled, and pass on any other."""
        if scope["type"] != "http" or scope["method"] != "GET" or not is_polled(scope["path"]):
            await self._app(scope, receive, send)
            return
        has = Headers(scope=scope).get("if-none-match", "")
        start: Message | None = None

        async def tagging(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                if not _taggable(message):
                    start = None
                    await send(message)
                return
            if start is None:
                await send(message)
                return
            begun, start = start, None
            if message.get("more_body", False):  # it comes in parts: its tag would come too late
                await send(begun)
            else:
                body = message.get("body", b"")
                message = {**message, "body": _tagged(begun, body, has)}
                await send(begun)
            await send(message)

        await self._app(scope, receive, tagging)


def is_polled(path: str) -> bool:
    """Return whether answers to GETs of a path have a tag."""
    return _POLLED.fullmatch(path) is not None and _UNTAGGED.search(path) is None


def tag_of(body: bytes) -> str:
    """Return the tag of an answer in JSON."""
    return weak_tag(_OF_THE_CLOCK.sub(b"", body))


def weak_tag(*parts: bytes) -> str:
    """Return the tag of an answer whose parts are these, without what is of the clock."""
    return f'W/"{hashlib.blake2b(bytes(1).join(parts), digest_size=12).hexdigest()}"'


def matches(has: str, tag: str) -> bool:
    """Return whether one of the tags of an ``If-None-Match`` is this one, weak or not."""
    return has.strip() == "*" or tag.removeprefix("W/") in _TAG.findall(has)


def _taggable(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return start["status"] == 200 and headers.get("content-type", "").startswith("application/json")


def _tagged(start: Message, body: bytes, has: str) -> bytes:
    """Tag what an answer begins with; return what is sent of its body."""
    headers = MutableHeaders(scope=start)
    tag = headers.get("ETag") or tag_of(body)
    headers["ETag"] = tag
    headers.setdefault("Cache-Control", "private, no-cache")
    if not matches(has, tag):
        return body
    start["status"] = 304
    for name in ("content-length", "content-type"):
        del headers[name]
    return b""
