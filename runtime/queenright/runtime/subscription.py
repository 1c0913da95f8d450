"""Subscriptions: a listener on the bus with its own queue and task."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from queenright.runtime.event_filter import EventFilter, matches
from queenright.runtime.events import ALERT_CLASS, AgentEvent

_YIELD_AFTER: Final = 256
"""A subscriber yields to the event loop after this many events."""

Handler = Callable[[AgentEvent], Awaitable[None] | None]
"""Called with one event at a time, in order. May be async."""


def current_task() -> asyncio.Task[object] | None:
    """Return the current task, or None outside of one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class Subscription:
    """One subscriber: its filter, its queue and the task that processes the queue."""

    def __init__(
        self,
        handler: Handler,
        *,
        name: str,
        event_filter: EventFilter,
        capacity: int,
        remove: Callable[[Subscription], None],
        on_drop: Callable[[str, int], None] | None,
        on_error: Callable[[str, BaseException], None],
    ) -> None:
        self.name = name
        self.dropped_count = 0
        """Number of events dropped because the queue was full."""
        self.event_filter = event_filter
        self._handler = handler
        self._where = event_filter.where
        self._capacity = capacity
        self._remove = remove
        self._on_drop = on_drop
        self._on_error = on_error
        # Two queues, so that the oldest droppable event is always at the front; the sequence number of each
        # item restores their order.
        self._alerts: deque[tuple[int, AgentEvent | asyncio.Future[None]]] = deque()
        self._others: deque[tuple[int, AgentEvent]] = deque()
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        # A handler must not run in the span of the publisher.
        self._context = contextvars.copy_context()

    def __repr__(self) -> str:
        return f"Subscription({self.name!r}, pending={self.pending}, dropped={self.dropped_count})"

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that processes the queue; None while the queue is empty."""
        return self._task

    @property
    def pending(self) -> int:
        """Number of queued events."""
        return len(self._alerts) + len(self._others)

    def cancel(self) -> None:
        """Unsubscribe. Discards queued events, and cancels a running handler unless it is the caller."""
        self._is_cancelled = True
        self._remove(self)
        self._others.clear()
        while self._alerts:
            _, item = self._alerts.popleft()
            if isinstance(item, asyncio.Future) and not item.done():
                item.set_result(None)
        if self._task is not None and self._task is not current_task():
            self._task.cancel()

    def offer(self, event: AgentEvent) -> None:
        """Queue an event of one of its types if the other conditions match. Called by the bus."""
        # An earlier subscriber of the same event may have cancelled this one.
        if self._is_cancelled or (self._where and not matches(event, self._where)):
            return
        if len(self._others) + len(self._alerts) >= self._capacity:
            # Drop the oldest event that is not an alert. Alerts are always queued.
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

    def add_marker(self) -> asyncio.Future[None]:
        """Return a future that is done when all events queued so far have been handled."""
        marker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._task is None:
            marker.set_result(None)
        else:
            self._number += 1
            self._alerts.append((self._number, marker))
        return marker

    def _count_drop(self) -> None:
        self.dropped_count += 1
        if self._on_drop is not None:
            self._on_drop(self.name, 1)

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._process_queue(), name=f"bus:{self.name}", context=self._context)

    def _pop_next(self) -> AgentEvent | asyncio.Future[None] | None:
        if not self._others:
            return self._alerts.popleft()[1] if self._alerts else None
        if self._alerts and self._alerts[0][0] < self._others[0][0]:
            return self._alerts.popleft()[1]
        return self._others.popleft()[1]

    async def _process_queue(self) -> None:
        """Process the queue, then end; the next event starts a new task."""
        count = 0
        try:
            while (item := self._pop_next()) is not None:
                if isinstance(item, asyncio.Future):
                    if not item.done():
                        item.set_result(None)
                    continue
                try:
                    result = self._handler(item)
                    if result is not None:
                        await result
                except Exception as error:
                    self._on_error(self.name, error)
                count += 1
                if count % _YIELD_AFTER == 0:
                    await asyncio.sleep(0)
        finally:
            self._task = None
