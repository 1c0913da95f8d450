"""Threads of tools. A thread cannot be killed, so the running ones are counted."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from queenright.instrumentation.errors import QueenrightError

MAX_THREADS_PER_SESSION: Final = 32
"""Maximum number of concurrent functions per session."""

T = TypeVar("T")

_abandoned_threads: Final[set[threading.Thread]] = set()
"""Threads whose callers no longer wait for them."""


def count_abandoned_threads() -> int:
    """Return the number of abandoned functions that still run; they cannot be stopped."""
    return sum(thread.is_alive() for thread in tuple(_abandoned_threads))


class TooManyThreadsError(QueenrightError):
    """Raised when all of a session's threads run abandoned functions."""


class ToolThreads:
    """
    Runs plain functions in threads, at most ``MAX_THREADS_PER_SESSION`` per session.

    A call that is cancelled or times out ends at once, but its thread runs until the function returns. Wait
    for ``wait_idle`` before anyone else writes in the session.
    """

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._abandoned_counts: Counter[str] = Counter()
        self._change_waiters: set[asyncio.Future[None]] = set()

    def count_running(self, session_id: str) -> int:
        """Return the number of functions that run for a session."""
        return self._running[session_id]

    async def wait_idle(self, session_id: str) -> None:
        """Wait until no function runs for a session."""
        while self._running[session_id]:
            await self._wait_for_change()

    async def run(self, session_id: str, function: Callable[[], T]) -> T:
        """
        Return the result of ``function``, or raise its exception; wait for a free thread first.

        Raises:
            TooManyThreadsError: All threads run abandoned functions, which may never end.
        """
        while self._running[session_id] >= MAX_THREADS_PER_SESSION:
            if self._abandoned_counts[session_id] >= MAX_THREADS_PER_SESSION:
                raise TooManyThreadsError(
                    f"{MAX_THREADS_PER_SESSION} calls that timed out are still running in this session, "
                    f"so no other is started until one of them ends"
                )
            await self._wait_for_change()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        is_abandoned = has_ended = False

        def work() -> None:
            try:
                result = context.run(function)
            except BaseException as error:
                # A future cannot hold a StopIteration.
                failure = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
                deliver(lambda: answer.set_exception(failure))
            else:
                deliver(lambda: answer.set_result(result))

        def deliver(set_answer: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the loop is closed and no caller waits
                loop.call_soon_threadsafe(end, set_answer)

        def end(set_answer: Callable[[], None]) -> None:
            nonlocal has_ended
            has_ended = True
            if is_abandoned:
                self._abandoned_counts[session_id] -= 1
                _abandoned_threads.discard(thread)
            self._count_end(session_id)
            if not answer.done():
                set_answer()

        self._running[session_id] += 1
        # A daemon thread: a hanging function must not keep the process alive.
        thread = threading.Thread(target=work, name="queenright-tool", daemon=True)
        try:
            thread.start()
        except BaseException:
            self._count_end(session_id)
            raise
        try:
            return await answer
        except asyncio.CancelledError:
            if not has_ended:
                is_abandoned = True
                self._abandoned_counts[session_id] += 1
                _abandoned_threads.add(thread)
                self._notify_change()
            raise

    def _count_end(self, session_id: str) -> None:
        self._running[session_id] -= 1
        for counter in (self._running, self._abandoned_counts):
            if counter[session_id] <= 0:
                del counter[session_id]
        self._notify_change()

    def _notify_change(self) -> None:
        for waiter in self._change_waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_for_change(self) -> None:
        """Wait until a thread has ended, or its caller stopped waiting."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._change_waiters.add(waiter)
        try:
            await waiter
        finally:
            self._change_waiters.discard(waiter)
