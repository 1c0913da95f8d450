"""A subscription: one listener on the bus, with a queue of its own and a task that works it off."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from queenright.runtime.event_filter import EventFilter, matches
from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType

_BREATHE: Final = 256
"""A subscriber gives way to the rest of the loop after so many events in one go."""

Handler = Callable[[AgentEvent], Awaitable[None] | None]
"""Is given one event at a time, in order. May be a plain or an async function."""


def current_task() -> asyncio.Task[object] | None:
    """Return the task that runs, if one does."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class Subscription:
    """One subscriber: its filter, its queue, and the task that works the queue off."""

    def __init__(
        self,
        handler: Handler,
        *,
        name: str,
        wanted: EventFilter,
        capacity: int,
        remove: Callable[[Subscription], None],
        on_drop: Callable[[str, int], None] | None,
        on_error: Callable[[str, BaseException], None],
    ) -> None:
        self.name = name
        self.dropped = 0
        """Events this subscriber missed because its queue was full."""
        self.wanted = wanted
        self._handler = handler
        self._where = wanted.where
        self._capacity = capacity
        self._remove = remove
        self._on_drop = on_drop
        self._on_error = on_error
        # Two queues, so that the oldest event that may be dropped is always at hand; the number
        # each item carries puts them back in order.
        self._alerts: deque[tuple[int, AgentEvent | asyncio.Future[None]]] = deque()
        self._others: deque[tuple[int, AgentEvent]] = deque()
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        # A handler must not run inside the span of whoever happened to publish.
        self._context = contextvars.copy_context()

    def __repr__(self) -> str:
        return f"Subscription({self.name!r}, pending={self.pending}, dropped={self.dropped})"

    @property
    def types(self) -> frozenset[EventType] | None:
        """The types it wants; None is all."""
        return self.wanted.types

    @property
    def filter_graph(self) -> str | None:
        """The graph whose events it wants; None is all."""
        return self.wanted.graph

    @property
    def filter_stream(self) -> str | None:
        """The stream whose events it wants; None is all."""
        return self.wanted.stream

    @property
    def filter_node(self) -> str | None:
        """The node whose events it wants; None is all."""
        return self.wanted.node

    @property
    def filter_agent(self) -> str | None:
        """The worker whose events it wants; None is all."""
        return self.wanted.agent

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What works the queue off; None while it is empty."""
        return self._task

    @property
    def pending(self) -> int:
        """Events waiting to be handled."""
        return len(self._alerts) + len(self._others)

    def cancel(self) -> None:
        """Stop: what is queued is discarded, a handler in progress is cancelled unless it is the caller."""
        self._cancelled = True
        self._remove(self)
        self._others.clear()
        while self._alerts:
            _, item = self._alerts.popleft()
            if isinstance(item, asyncio.Future) and not item.done():
                item.set_result(None)
        if self._task is not None and self._task is not current_task():
            self._task.cancel()

    def offer(self, event: AgentEvent) -> None:
        """Queue an event of one of its types, if the rest of its filter matches too. For the bus."""
        # Cancelled by somebody who was shown the same events before: no task may start any more.
        if self._cancelled or (self._where and not matches(event, self._where)):
            return
        if len(self._others) + len(self._alerts) >= self._capacity:
            # The oldest event that is no alert goes. Alerts only ever add to the queue.
            if self._others:
                self._others.popleft()
                self._count_drop()
            elif event.type not in ALERT_CLASS:
                self._count_drop()
                return
        self._number += 1
        if event.type in ALERT_CLASS:
            self._alerts.append((self._number, event))
        else:
            self._others.append((self._number, event))
        if self._task is None:
            self._start()

    def mark(self) -> asyncio.Future[None]:
        """Return a future that is done when everything queued so far has been handled."""
        marker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._task is None:
            marker.set_result(None)
        else:
            self._number += 1
            self._alerts.append((self._number, marker))
        return marker

    def _count_drop(self) -> None:
        self.dropped += 1
        if self._on_drop is not None:
            self._on_drop(self.name, 1)

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._work(), name=f"bus:{self.name}", context=self._context)

    def _next(self) -> AgentEvent | asyncio.Future[None] | None:
        if not self._others:
            return self._alerts.popleft()[1] if self._alerts else None
        if self._alerts and self._alerts[0][0] < self._others[0][0]:
            return self._alerts.popleft()[1]
        return self._others.popleft()[1]

    async def _work(self) -> None:
        """Handle what is queued, then end; the next event starts a new task."""
        handled = 0
        try:
            while (item := self._next()) is not None:
                if isinstance(item, asyncio.Future):
                    if not item.done():
                        item.set_result(None)
                    continue
                try:
                    waiting = self._handler(item)
                    if waiting is not None:
                        await waiting
                except Exception as error:
                    self._on_error(self.name, error)
                handled += 1
                if handled % _BREATHE == 0:
                    await asyncio.sleep(0)
        finally:
            self._task = None
