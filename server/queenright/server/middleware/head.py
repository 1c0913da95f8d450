"""HEAD: what a GET would be answered, without its body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STREAMS = ("/events", "/live")
"""How paths end that are answered for as long as somebody listens: of these there is no head."""


class HeadMiddleware:
    """
    ASGI middleware: a HEAD is a GET for all that is behind it, and no body comes back.

    Args:
        app: What is behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].endswith(_STREAMS):
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, sending)
