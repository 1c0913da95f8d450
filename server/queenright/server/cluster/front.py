"""What every member of a cluster serves: telemetry goes to the stream, all else to the owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from queenright.health.cluster_lease import Member
from queenright.server.access.addresses import is_loopback
from queenright.server.cluster.proxy import FORWARDED, OwnerUnreachableError, Proxy
from queenright.server.cluster.stream import MessageTooLargeError, StreamUnavailableError, TelemetryStream
from queenright.server.console.templates import render_error
from queenright.server.http.problems import problem
from queenright.server.otlp.errors import RESOURCE_EXHAUSTED, RejectedRequestError, unavailable_error
from queenright.server.webhooks.hooks import ANSWER_SECONDS, CLIENT_BY_PATH, MAX_BODY

_log = logging.getLogger(__name__)

LOCAL_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics", "/api/cluster"})
"""Answered by each member for itself."""

_RETRY_SECONDS: Final = 2
_HOOK_SECONDS: Final = ANSWER_SECONDS + 0.1
"""Longer than the owner takes at most, and less than the clients' timeout of one second."""
_NO_OWNER: Final = "no process of the cluster watches the workers at the moment; try again in a few seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerApps:
    """The apps of the service, in the member that owns the cluster."""

    api: ASGIApp
    hooks: ASGIApp


class ClusterFront:
    """
    The ASGI apps of a member.

    Args:
        stream: The telemetry stream.
        proxy: Passes requests on to the owner.
        standby: Answers `LOCAL_PATHS` while this member is not the owner.
        is_exposed: Whether other machines reach this member.
    """

    def __init__(self, *, stream: TelemetryStream, proxy: Proxy, standby: ASGIApp, is_exposed: bool) -> None:
        self._stream = stream
        self._proxy = proxy
        self._standby = standby
        self._is_exposed = is_exposed
        self._owner: Member | None = None
        self._owner_changed = asyncio.Event()
        self.apps: OwnerApps | None = None
        """The apps of this member, while it is the owner."""

    @property
    def owner(self) -> Member | None:
        """The owner, if it is another member. A new one ends the event streams of the former."""
        return self._owner

    @owner.setter
    def owner(self, owner: Member | None) -> None:
        if owner != self._owner:
            self._owner = owner
            self._owner_changed.set()
            self._owner_changed = asyncio.Event()

    async def publish(self, path: str, piece: bytes) -> None:
        """
        Publish a piece of an OTLP request.

        Raises:
            RejectedRequestError: It was not acknowledged (503), or is too large (413).
        """
        try:
            await self._stream.publish(path, piece, is_unique=True)
        except StreamUnavailableError as error:
            raise unavailable_error(f"{error}; retry later", _RETRY_SECONDS) from None
        except MessageTooLargeError as error:
            raise RejectedRequestError(413, RESOURCE_EXHAUSTED, str(error)) from None

    async def keep_hook(self, path: str, body: bytes) -> None:
        """
        Publish a hook call that cannot be stored now; the owner stores it later.

        Args:
            path: Its path, with the query.
            body: Its body.

        Raises:
            StreamUnavailableError, MessageTooLargeError: It was not published.
        """
        await self._stream.publish(path, body, is_unique=False)

    async def api(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the API and the console: here if this member is the owner, else there."""
        if self.apps is not None:
            await self.apps.api(scope, receive, send)
        elif scope["type"] != "http" or scope["path"] in LOCAL_PATHS:
            await self._standby(scope, receive, send)
        else:
            try:
                await self._forward(scope, receive, send, lambda owner: owner.api_url)
            except OwnerUnreachableError:
                await _answer_no_owner(scope, receive, send)

    async def hooks(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Serve hooks of coding agents.

        A hook whose owner does not answer in time is kept in the stream, and its agent continues.
        """
        if self.apps is not None:
            await self.apps.hooks(scope, receive, send)
            return
        body = await _read_body(receive)
        try:
            await self._forward(
                scope, receive, send, lambda owner: owner.otlp_url, body=body, answer_seconds=_HOOK_SECONDS
            )
            return
        except OwnerUnreachableError:
            pass
        if body and scope["method"] == "POST" and scope["path"] in CLIENT_BY_PATH:
            query = scope.get("query_string", b"").decode("latin-1")
            try:
                await self.keep_hook(f"{scope['path']}?{query}", body)
            except (StreamUnavailableError, MessageTooLargeError) as error:
                _log.warning("a hook call is lost; its agent continues: %s", error)
        await JSONResponse({})(scope, receive, send)

    async def _forward(
        self, scope: Scope, receive: Receive, send: Send, url_of: Callable[[Member], str], **options: Any
    ) -> None:
        if self.owner is None or any(name == FORWARDED for name, _ in scope["headers"]):
            raise OwnerUnreachableError
        if self._is_exposed and is_loopback(self.owner.host):
            # There, a caller without a token may do everything.
            raise OwnerUnreachableError
        await self._proxy.forward(
            url_of(self.owner), scope, receive, send, ended=self._owner_changed, **options
        )


async def _read_body(receive: Receive) -> bytes:
    """Return the body; empty if it is too long, or the client disconnects."""
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY or message["type"] == "http.disconnect":
            return b""
        if not message.get("more_body", False):
            return b"".join(parts)


async def _answer_no_owner(scope: Scope, receive: Receive, send: Send) -> None:
    wants_page = "text/html" in Headers(scope=scope).get("accept", "")
    response = render_error(503, f"Starting: {_NO_OWNER}.") if wants_page else problem(503, _NO_OWNER)
    response.headers["Retry-After"] = str(_RETRY_SECONDS)
    await response(scope, receive, send)
