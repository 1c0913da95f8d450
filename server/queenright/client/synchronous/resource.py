"""The base of all groups of API calls."""

from __future__ import annotations

from queenright.client.synchronous.transport import Transport


class Resource:
    """A group of API calls."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
