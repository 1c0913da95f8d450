"""Cache recent rows of the store. Pages read them often, but the store is read only after changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from queenright.health.store.store import StoreError
from queenright.runtime.events import AgentEvent

T = TypeVar("T")

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.1
"""Seconds between reads, so that a burst of events causes only one or two reads."""
_MAX_AGE_SECONDS: Final = 5.0
"""Seconds after which the store is read without an event, because not every change publishes one."""


class LatestRows(Generic[T]):
    """
    The newest rows of a table, cached in memory.

    Args:
        read: Reads the rows, newest first.
        row_name: The name of the rows in log lines.
    """

    def __init__(self, read: Callable[[], Awaitable[list[T]]], *, row_name: str) -> None:
        self.latest: list[T] = []
        """Newest first."""
        self._read = read
        self._row_name = row_name
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.latest)} {self._row_name})"

    def note_change(self, event: AgentEvent) -> None:
        """Read the store soon, because an event may have changed it."""
        self._changed.set()

    async def load(self) -> None:
        """
        Read the store now.

        Raises:
            StoreError: The store cannot be read; the list is unchanged.
        """
        self.latest = await self._read()

    async def run(self) -> None:
        """Read the store after changes, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MAX_AGE_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.load()
            except StoreError as error:
                _log.error("cannot read the latest %s; retrying: %s", self._row_name, error)
            await asyncio.sleep(_PAUSE_SECONDS)
