"""What a request is answered that the end of the service cuts short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.server.access.headers import set_security_headers
from queenright.server.routes.problems import problem


class ShutdownMiddleware:
    """
    ASGI middleware: while the service stops, a request that is cancelled is answered 503, and no fault.

    Args:
        app: What is behind it.
        stopping: Whether the service stops.
    """

    def __init__(self, app: ASGIApp, *, stopping: Callable[[], bool]) -> None:
        self._app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if scope["type"] != "http" or not self._stopping():
                raise
            if not begun:
                said = problem(503, "the service is stopping; ask again when it is back")
                set_security_headers(said.headers)
                await said(scope, receive, send)
