"""Expectations: wait for the first event that matches."""

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
    The first matching event from now on, as returned by ``EventBus.expect``.

    It has no queue and never misses an event. Use it as a context manager around the code that causes the
    event, or ``cancel`` it; it unsubscribes itself once the event has arrived.
    """

    def __init__(
        self,
        *,
        event_filter: EventFilter,
        where: Callable[[AgentEvent], bool] | None,
        remove: Callable[[Expectation], None],
    ) -> None:
        self.event_filter = event_filter
        self._where = event_filter.where
        self._condition = where
        self._remove = remove
        self._event: asyncio.Future[AgentEvent] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"Expectation({str(self.event_filter)!r}, done={self._event.done()})"

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
        Return the event, even if it arrived before this call.

        Args:
            seconds: Maximum seconds to wait; None waits forever. After a timeout, it can be called again.

        Raises:
            TimeoutError: No such event arrived in time; names the event.
            RuntimeError: The bus was closed.
            Exception: Whatever ``where`` raised.
        """
        if seconds is None or self._event.done():
            return await self._wait()
        try:
            return await within(seconds, self._wait(), sleep)
        except TimeoutError:
            if self._event.done():
                return await self._wait()
            raise TimeoutError(f"no event arrived within {seconds:g} s: {self.event_filter}") from None

    def cancel(self) -> None:
        """Stop waiting; pending waits are cancelled."""
        self._remove(self)
        self._event.cancel()

    def fail(self, error: BaseException) -> None:
        """End the wait with ``error``. Called by the bus."""
        self._remove(self)
        if not self._event.done():
            self._event.set_exception(error)
            # Retrieve it, or asyncio would log it as never retrieved.
            self._event.exception()

    def offer(self, event: AgentEvent) -> None:
        """Accept an event of one of its types if the other conditions match. Called by the bus."""
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
        # A cancelled wait must not cancel the future for the others.
        return await asyncio.shield(self._event)
