"""Threads of tools: a thread cannot be killed, so those that still run are counted."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from queenright.instrumentation.errors import QueenrightError

THREADS: Final = 32
"""So many functions run for one session at the same time."""

T = TypeVar("T")

_left: Final[set[threading.Thread]] = set()
"""Threads whose callers have given them up."""


def left_behind() -> int:
    """How many functions are at work in this process though nobody waits for them; they cannot be stopped."""
    return sum(thread.is_alive() for thread in tuple(_left))


class TooManyThreadsError(QueenrightError):
    """Raised where a session's threads are all taken by functions whose callers have given them up."""


class ToolThreads:
    """
    Runs plain functions in threads of their own, by the session that they work for: at most 32 for each.

    A call that is cancelled, or whose time is up, ends at once; its thread goes on until its function
    returns. Nobody else may write in that session before then: wait for ``ended``.
    """

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._given_up: Counter[str] = Counter()
        self._changed: set[asyncio.Future[None]] = set()

    def running(self, session_id: str) -> int:
        """How many functions still run for a session."""
        return self._running[session_id]

    async def ended(self, session_id: str) -> None:
        """Return when no function runs for a session."""
        while self._running[session_id]:
            await self._change()

    async def run(self, session_id: str, function: Callable[[], T]) -> T:
        """
        Return what ``function`` returns, or raise what it raises; wait for a thread first, if all are taken.

        Raises:
            TooManyThreadsError: All are taken by functions that nobody waits for, which may never end.
        """
        while self._running[session_id] >= THREADS:
            if self._given_up[session_id] >= THREADS:
                raise TooManyThreadsError(
                    f"{THREADS} calls whose time was up are still at work in this session, "
                    f"and no more are begun before one of them ends"
                )
            await self._change()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        given_up = ended = False

        def work() -> None:
            try:
                result = context.run(function)
            except BaseException as error:
                # A future cannot hold a StopIteration.
                raised = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
                tell(lambda: answer.set_exception(raised))
            else:
                tell(lambda: answer.set_result(result))

        def tell(how: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile, and nobody waits any more
                loop.call_soon_threadsafe(end, how)

        def end(how: Callable[[], None]) -> None:
            nonlocal ended
            ended = True
            if given_up:
                self._given_up[session_id] -= 1
                _left.discard(thread)
            self._end(session_id)
            if not answer.done():
                how()

        self._running[session_id] += 1
        # A daemon: a function that hangs must not keep the process from ending.
        thread = threading.Thread(target=work, name="queenright-tool", daemon=True)
        try:
            thread.start()
        except BaseException:
            self._end(session_id)
            raise
        try:
            return await answer
        except asyncio.CancelledError:
            if not ended:
                given_up = True
                self._given_up[session_id] += 1
                _left.add(thread)
                self._tell()
            raise

    def _end(self, session_id: str) -> None:
        self._running[session_id] -= 1
        for counter in (self._running, self._given_up):
            if counter[session_id] <= 0:
                del counter[session_id]
        self._tell()

    def _tell(self) -> None:
        for changed in self._changed:
            if not changed.done():
                changed.set_result(None)

    async def _change(self) -> None:
        """Return when a thread has ended, or was given up."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.add(changed)
        try:
            await changed
        finally:
            self._changed.discard(changed)
