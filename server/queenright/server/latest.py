"""Recent rows of the store, in memory: pages are rendered often, the store is read after changes."""

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
"""Seconds between two reads, so that a hundred events cause one read or two."""
_MAX_AGE: Final = 5.0
"""Seconds after which the store is read without an event: not every change has one."""


class Latest(Generic[T]):
    """
    The newest rows of one kind.

    Args:
        read: Reads them, newest first.
        what: Their name in log lines.
    """

    def __init__(self, read: Callable[[], Awaitable[list[T]]], *, what: str) -> None:
        self.latest: list[T] = []
        """Newest first."""
        self._read = read
        self._what = what
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.latest)} {self._what})"

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
                async with asyncio.timeout(_MAX_AGE):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.load()
            except StoreError as error:
                _log.error("cannot read the latest %s; retrying: %s", self._what, error)
            await asyncio.sleep(_PAUSE_SECONDS)
