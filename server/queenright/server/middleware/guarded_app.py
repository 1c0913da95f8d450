"""Wrap an app in the guards of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.server.access.access import Access
from queenright.server.access.api_guard import ApiGuard, Page
from queenright.server.middleware.gate import Gate, list_accepted_hosts


def build_guarded_app(
    routes: ASGIApp,
    state: Mapping[str, Any],
    *,
    access: Access,
    bind_address: str,
    page: Page,
    outer: Sequence[Middleware] = (),
    inner: Sequence[Middleware] = (),
) -> Starlette:
    """
    Return the routes behind the guards. A process creates its routes once, and passes their state here.

    Args:
        routes: The app of the routes.
        state: The attributes of ``request.state``.
        access: Authenticates and authorizes callers.
        bind_address: The address of the port.
        page: Renders a denial for browsers.
        outer: Middleware before the guards; the first one is the outermost.
        inner: Middleware behind the guards.
    """
    settings = access.settings
    names = list_accepted_hosts(settings.http.host, settings.alerting.console_url, bind_address=bind_address)
    guards = [
        Middleware(HeadMiddleware),
        Middleware(Gate, names=names),
        Middleware(ApiGuard, access=access, bind_address=bind_address, page=page),
    ]
    return Starlette(routes=[_CatchAllRoute(routes, state)], middleware=[*outer, *guards, *inner])


class _CatchAllRoute(BaseRoute):
    """
    The route of all requests, which sets their state.

    A ``Mount`` would not match a path with a line break, which a worker's name may contain.
    """

    def __init__(self, app: ASGIApp, state: Mapping[str, Any]) -> None:
        self._app = app
        self._state = state

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match any request."""
        return Match.FULL, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set the state, and pass the request to the app."""
        # Copy the scope, because a cluster's gateway passes the same scope to several apps concurrently.
        await self._app({**scope, "state": dict(self._state)}, receive, send)


_STREAM_SUFFIX = "/events"
"""Suffix of the paths of streams, which do not support HEAD."""


class HeadMiddleware:
    """
    ASGI middleware that handles HEAD as GET, and drops the body of the response.

    Args:
        app: The app behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a HEAD, or pass the request to the app."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].endswith(_STREAM_SUFFIX):
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)
