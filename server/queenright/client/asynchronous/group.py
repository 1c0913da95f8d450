"""What all groups of calls have: whom they ask."""

from __future__ import annotations

from queenright.client.asynchronous.transport import AsyncTransport


class AsyncGroup:
    """Calls that belong together; ``ask`` is what asks the service."""

    def __init__(self, ask: AsyncTransport) -> None:
        self._ask = ask
