"""What all groups of calls have: whom they ask."""

from __future__ import annotations

from queenright.client.synchronous.transport import Transport


class Group:
    """Calls that belong together; ``ask`` is what asks the service."""

    def __init__(self, ask: Transport) -> None:
        self._ask = ask
