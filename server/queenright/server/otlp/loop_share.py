"""Limit the share of the event loop that decoding uses, so that other tasks continue."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_SECONDS: Final = 0.01
"""Seconds of work per iteration of the event loop. A step may exceed it by up to the same time."""


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
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Run ``work`` in this iteration or a later one. Its argument returns whether its time is used up."""
        if self._waiting or self._spent_seconds >= self._seconds:
            await self._turn()
        began = self._timer()
        until = began + self._seconds - self._spent_seconds
        try:
            return work(lambda: self._timer() >= until)
        finally:
            self._spend(self._timer() - began)

    async def _turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._wake()
            raise

    def _spend(self, seconds: float) -> None:
        if not self._spent_seconds:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._spent_seconds += max(seconds, 1e-9)
        if self._spent_seconds < self._seconds:
            self._wake()

    def _begin_turn(self) -> None:
        self._spent_seconds = max(0.0, self._spent_seconds - self._seconds)
        if self._spent_seconds:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        if self._spent_seconds < self._seconds:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class CapacityLimiter:
    """
    A weighted semaphore that serves waiters in order of arrival.

    Args:
        size: The total capacity. A bigger request is admitted alone.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used_size = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, size: int) -> AsyncIterator[None]:
        """Hold some of the capacity while the block runs."""
        if self._waiting or not self._has_room(size):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
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
        while self._waiting and (self._waiting[0][1].done() or self._has_room(self._waiting[0][0])):
            waiting_size, turn = self._waiting.popleft()
            if not turn.done():
                self._used_size += waiting_size
                turn.set_result(None)
