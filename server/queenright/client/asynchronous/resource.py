"""The base of all groups of API calls."""

from __future__ import annotations

from queenright.client.asynchronous.transport import AsyncTransport


class AsyncResource:
    """A group of API calls."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
