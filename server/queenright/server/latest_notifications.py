"""The latest notifications, kept in memory: a page is rendered often, the store is read after a change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from queenright.alerting.notification import HandedOver, handed_over
from queenright.health.store import Store, StoreError
from queenright.runtime.events import AgentEvent, EventType

_log = logging.getLogger(__name__)

CHANGING: Final = frozenset(
    {
        EventType.WORKER_ESCALATION_TICKET,
        EventType.QUEEN_INTERVENTION_REQUESTED,
        EventType.TICKET_RESOLVED,
        EventType.NOTIFICATION_DELIVERED,
        EventType.NOTIFICATION_FAILED,
    }
)
"""Events after which there may be something new in the outbox."""

_REST: Final = 0.1
"""Seconds between two reads, so that a hundred events at once are one read or two."""
_LOOK_ANYWAY: Final = 5.0
"""Seconds after which the store is read unasked: an end that no peer need be told has no event."""


class LatestNotifications:
    """
    The newest notifications and what became of them.

    Args:
        store: Where they are.
        limit: How many are kept.
    """

    def __init__(self, store: Store, *, limit: int = 50) -> None:
        self.latest: list[HandedOver] = []
        """Newest first."""
        self._store = store
        self._limit = limit
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"LatestNotifications({len(self.latest)})"

    def changed(self, event: AgentEvent) -> None:
        """Take note of an event of ``CHANGING``."""
        self._changed.set()

    async def load(self) -> None:
        """
        Read them now.

        Raises:
            StoreError: the store cannot be read; the list stays as it was.
        """
        self.latest = await self._store.read(lambda conn: handed_over(conn, self._limit))

    async def run(self) -> None:
        """Keep up until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_ANYWAY):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.load()
            except StoreError as error:
                _log.error("the latest notifications cannot be read, and are tried again: %s", error)
            await asyncio.sleep(_REST)
