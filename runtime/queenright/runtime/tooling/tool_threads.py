"""Threads of tools: a thread cannot be killed, so those that still run are counted."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class ToolThreads:
    """
    Runs plain functions in threads of their own, by the session that they work for.

    A call that is cancelled, or whose time is up, ends at once; its thread goes on until its function
    returns. Nobody else may write in that session before then: wait for ``ended``.
    """

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._changed: set[asyncio.Future[None]] = set()

    def running(self, session_id: str) -> int:
        """How many functions still run for a session."""
        return self._running[session_id]

    async def ended(self, session_id: str) -> None:
        """Return when no function runs for a session."""
        while self._running[session_id]:
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changed.add(changed)
            try:
                await changed
            finally:
                self._changed.discard(changed)

    async def run(self, session_id: str, function: Callable[[], T]) -> T:
        """Return what ``function`` returns, or raise what it raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

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
        return await answer

    def _end(self, session_id: str) -> None:
        self._running[session_id] -= 1
        if self._running[session_id] <= 0:
            del self._running[session_id]
        for changed in self._changed:
            if not changed.done():
                changed.set_result(None)
