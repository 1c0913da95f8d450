"""A clock that is moved manually, and wakes sleepers whose time has come."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math


class VirtualTime:
    """A ``Clock`` in seconds since the epoch, with a ``sleep`` on the same clock."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has moved by ``seconds``. With 0, only let other tasks run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake_up = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), wake_up))
        await wake_up

    def next_waking(self) -> float:
        """Return when the first sleeper wakes, or infinity without sleepers."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else math.inf

    def move_to(self, moment: float) -> bool:
        """Move the clock forward, and wake the sleepers that are due. Return whether there were any."""
        self.now = max(self.now, moment)
        is_awake = False
        while self.next_waking() <= self.now:
            heapq.heappop(self._sleepers)[2].set_result(None)
            is_awake = True
        return is_awake
