"""An expectation: the first event that matches, awaited by whoever causes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

from queenright.runtime.deadline import Sleep, within
from queenright.runtime.event_filter import EventFilter, matches
from queenright.runtime.events import AgentEvent


class Expectation:
    """
    The first event that matches, from now on: what ``EventBus.expect`` returns.

    It has no queue that could overflow: however much goes by, it misses nothing. Use it with ``with``
    around what causes the event, or ``cancel`` it; once its event is there it is done by itself.
    """

    def __init__(
        self,
        *,
        wanted: EventFilter,
        where: Callable[[AgentEvent], bool] | None,
        remove: Callable[[Expectation], None],
    ) -> None:
        self.wanted = wanted
        self._where = wanted.where
        self._condition = where
        self._remove = remove
        self._event: asyncio.Future[AgentEvent] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"Expectation({str(self.wanted)!r}, done={self._event.done()})"

    def __enter__(self) -> Expectation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def __await__(self) -> Generator[Any, None, AgentEvent]:
        return self._wait().__await__()

    async def within(self, seconds: float | None, *, sleep: Sleep = asyncio.sleep) -> AgentEvent:
        """
        Return the event, also if it came before this was asked.

        Args:
            seconds: How long to wait at most; None waits for ever. When they are up, it may be asked again.
            sleep: The clock that the time goes by.

        Raises:
            TimeoutError: No such event came in time; says which.
            RuntimeError: The bus was closed before one came.
            Exception: What ``where`` raised when it was shown an event.
        """
        if seconds is None or self._event.done():
            return await self._wait()
        try:
            return await within(seconds, self._wait(), sleep)
        except TimeoutError:
            if self._event.done():
                return await self._wait()
            raise TimeoutError(f"{self.wanted} did not come within {seconds:g} s") from None

    def cancel(self) -> None:
        """Expect nothing more; whoever still waits is cancelled."""
        self._remove(self)
        self._event.cancel()

    def fail(self, error: BaseException) -> None:
        """End the wait with ``error``. For the bus."""
        self._remove(self)
        if not self._event.done():
            self._event.set_exception(error)
            # Read once, so that nobody is told of it if nobody waits.
            self._event.exception()

    def offer(self, event: AgentEvent) -> None:
        """Take an event of one of its types, if the rest matches too. For the bus."""
        if self._event.done() or not matches(event, self._where):
            return
        try:
            if self._condition is not None and not self._condition(event):
                return
        except Exception as error:
            self._event.set_exception(error)
        else:
            self._event.set_result(event)
        self._remove(self)

    async def _wait(self) -> AgentEvent:
        # Whoever gives up waiting does not end it for the others.
        return await asyncio.shield(self._event)
