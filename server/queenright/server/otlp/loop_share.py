"""Limit the share of the event loop that decoding uses, so that other tasks can run."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_SECONDS: Final = 0.01
"""Seconds of work per iteration of the event loop. A single step may exceed it."""


class EventLoopShare:
    """
    Divides work into slices of at most ``seconds`` per iteration of the event loop.

    Waiting work runs in order of arrival, after the other tasks of the loop. Time beyond a slice is deducted
    from later slices.

    Args:
        seconds: Seconds of work per iteration of the event loop.
        timer: Measures time, in the unit of ``seconds``.
    """

    def __init__(
        self, seconds: float = SLICE_SECONDS, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds = seconds
        self._timer = timer
        self._spent_seconds = 0.0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def run(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Run ``work`` in this or a later iteration. Its argument returns whether its time is used up."""
        if self._waiters or self._spent_seconds >= self._seconds:
            await self._wait_for_turn()
        started_at = self._timer()
        deadline = started_at + self._seconds - self._spent_seconds
        try:
            return work(lambda: self._timer() >= deadline)
        finally:
            self._spend(self._timer() - started_at)

    async def _wait_for_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._wake()
            raise

    def _spend(self, seconds: float) -> None:
        if not self._spent_seconds:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        self._spent_seconds += max(seconds, 1e-9)
        if self._spent_seconds < self._seconds:
            self._wake()

    def _begin_iteration(self) -> None:
        self._spent_seconds = max(0.0, self._spent_seconds - self._seconds)
        if self._spent_seconds:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        if self._spent_seconds < self._seconds:
            self._wake()

    def _wake(self) -> None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class CapacityLimiter:
    """
    A weighted semaphore that serves waiters in order of arrival.

    Args:
        size: The total capacity. A larger request is admitted alone.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used_size = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, size: int) -> AsyncIterator[None]:
        """Hold some of the capacity while the block runs."""
        if self._waiters or not self._has_room(size):
            turn = asyncio.get_running_loop().create_future()
            self._waiters.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._release(size)
                raise
        else:
            self._used_size += size
        try:
            yield
        finally:
            self._release(size)

    def _has_room(self, size: int) -> bool:
        return not self._used_size or self._used_size + size <= self._size

    def _release(self, size: int) -> None:
        self._used_size -= size
        while self._waiters and (self._waiters[0][1].done() or self._has_room(self._waiters[0][0])):
            waiting_size, turn = self._waiters.popleft()
            if not turn.done():
                self._used_size += waiting_size
                turn.set_result(None)
