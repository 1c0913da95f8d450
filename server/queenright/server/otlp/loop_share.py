"""What decoding may take of the event loop, so that everything else on it goes on."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

T = TypeVar("T")

SLICE: Final = 0.01
"""Seconds of one turn of the loop. One step more than fits is taken, of at most another as many."""


class EventLoopShare:
    """
    Divides work into slices: when one turn of the loop has done so much, the rest waits for the next.

    Whoever waits is served in the order of arrival, after everybody else on the loop had their turn. What a
    step took beyond its slice is taken from the turns that follow: an answer takes several of them.

    Args:
        seconds: Of one turn of the loop.
        timer: Counts seconds, or whatever ``seconds`` is given in.
    """

    def __init__(self, seconds: float = SLICE, timer: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = seconds
        self._timer = timer
        self._spent = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Return what ``work`` returns; it is given a function that says whether to stop for now."""
        if self._waiting or self._spent >= self._seconds:
            await self._turn()
        began = self._timer()
        until = began + self._seconds - self._spent
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
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._spent += max(seconds, 1e-9)
        if self._spent < self._seconds:
            self._wake()

    def _begin_turn(self) -> None:
        self._spent = max(0.0, self._spent - self._seconds)
        if self._spent:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        if self._spent < self._seconds:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class CapacityLimiter:
    """
    Lets so much be under way at one time; the rest waits in the order of arrival.

    Args:
        size: How much; one that is bigger alone is let in alone.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, size: int) -> AsyncIterator[None]:
        """Take part of it for as long as the block lasts."""
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
            self._used += size
        try:
            yield
        finally:
            self._release(size)

    def _has_room(self, size: int) -> bool:
        return not self._used or self._used + size <= self._size

    def _release(self, size: int) -> None:
        self._used -= size
        while self._waiting and (self._waiting[0][1].done() or self._has_room(self._waiting[0][0])):
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self._used += wanted
                turn.set_result(None)
