"""Routes are made once in a process; each service tells them about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send


class WithState:
    """
    ASGI middleware that sets the state of each request (``request.state``).

    Args:
        app: The app behind it.
        state: The attributes.
    """

    def __init__(self, app: ASGIApp, state: Mapping[str, Any]) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        await self._app({**scope, "state": dict(self._state)}, receive, send)
