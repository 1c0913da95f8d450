"""The latest of what is on the disk, in memory: a page is rendered often, the store read after a change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from queenright.health.store import StoreError
from queenright.runtime.events import AgentEvent

T = TypeVar("T")

_log = logging.getLogger(__name__)

_REST: Final = 0.1
"""Seconds between two reads, so that a hundred events at once are one read or two."""
_LOOK_ANYWAY: Final = 5.0
"""Seconds after which the store is read unasked: not every change has an event."""


class Latest(Generic[T]):
    """
    The newest of something.

    Args:
        read: Reads them, newest first.
        what: What they are, in the log.
    """

    def __init__(self, read: Callable[[], Awaitable[list[T]]], *, what: str) -> None:
        self.latest: list[T] = []
        """Newest first."""
        self._read = read
        self._what = what
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.latest)} {self._what})"

    def changed(self, event: AgentEvent) -> None:
        """Take note of an event after which there may be something new."""
        self.look()

    def look(self) -> None:
        """Read them soon: there may be something new, of which no event says so."""
        self._changed.set()

    async def load(self) -> None:
        """
        Read them now.

        Raises:
            StoreError: the store cannot be read; the list stays as it was.
        """
        self.latest = await self._read()

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
                _log.error("the latest %s cannot be read, and are tried again: %s", self._what, error)
            await asyncio.sleep(_REST)
