"""Respond to requests that the shutdown of the service cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.server.access.headers import set_security_headers
from queenright.server.http.problems import make_problem_response


class ShutdownMiddleware:
    """
    ASGI middleware that responds with 503 to a request that is cancelled while the service stops.

    Args:
        app: The app behind it.
        is_stopping: Returns whether the service is stopping.
    """

    def __init__(self, app: ASGIApp, *, is_stopping: Callable[[], bool]) -> None:
        self._app = app
        self._is_stopping = is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. If shutdown cancels it, respond 503, unless the response has started."""
        has_started = False

        async def send_and_mark_started(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_mark_started)
        except asyncio.CancelledError:
            if scope["type"] != "http" or not self._is_stopping():
                raise
            if not has_started:
                response = make_problem_response(503, "the service is stopping; retry when it is back")
                set_security_headers(response.headers)
                await response(scope, receive, send)
