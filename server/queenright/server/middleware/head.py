"""HEAD requests, answered as GET without the body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STREAM = "/events"
"""Ending of the paths of streams, which have no HEAD."""


class HeadMiddleware:
    """
    ASGI middleware that turns a HEAD into a GET and drops the body of the response.

    Args:
        app: The app behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a HEAD, or pass a request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].endswith(_STREAM):
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)
