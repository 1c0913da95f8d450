"""
The event bus: everything that happens goes through here, and nobody on it can slow or break anybody else.

A bus belongs to one event loop and is not thread-safe: from another thread, go through
``loop.call_soon_threadsafe(bus.fan_out, event)``.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Protocol

from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType

_log = logging.getLogger(__name__)

_BREATHE: Final = 256
"""A subscriber gives way to the rest of the loop after so many events in one go."""

Handler = Callable[[AgentEvent], Awaitable[None] | None]
"""Is given one event at a time, in order. May be a plain or an async function."""


class EventLog(Protocol):
    """Where events are made durable before anyone acts on them."""

    def append(self, events: Sequence[AgentEvent]) -> Awaitable[None]:
        """Return once ``events`` would survive a crash."""
        ...


class Subscription:
    """One subscriber: its filter, its queue, and the task that works the queue off."""

    def __init__(
        self,
        bus: EventBus,
        handler: Handler,
        *,
        name: str,
        types: frozenset[EventType] | None,
        where: tuple[tuple[str, str], ...],
        capacity: int,
    ) -> None:
        self.name = name
        self.dropped = 0
        """Events this subscriber missed because its queue was full."""
        self._bus = bus
        self._handler = handler
        self._types = types
        self._where = where
        self._capacity = capacity
        # Two queues, so that the oldest event that may be dropped is always at hand; the number
        # each item carries puts them back in order.
        self._alerts: deque[tuple[int, AgentEvent | asyncio.Future[None]]] = deque()
        self._others: deque[tuple[int, AgentEvent]] = deque()
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        # A handler must not run inside the span of whoever happened to publish.
        self._context = contextvars.copy_context()

    def __repr__(self) -> str:
        return f"Subscription({self.name!r}, pending={self.pending}, dropped={self.dropped})"

    @property
    def pending(self) -> int:
        """Events waiting to be handled."""
        return len(self._alerts) + len(self._others)

    def cancel(self) -> None:
        """Stop: what is queued is discarded, a handler in progress is cancelled unless it is the caller."""
        self._bus._remove(self)
        self._others.clear()
        while self._alerts:
            _, item = self._alerts.popleft()
            if isinstance(item, asyncio.Future) and not item.done():
                item.set_result(None)
        if self._task is not None and self._task is not _current_task():
            self._task.cancel()

    def _wants(self, event: AgentEvent) -> bool:
        return all(getattr(event, name) == value for name, value in self._where)

    def _offer(self, event: AgentEvent) -> None:
        if self._where and not self._wants(event):
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

    def _mark(self) -> asyncio.Future[None]:
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
        if self._bus._on_drop is not None:
            self._bus._on_drop(self.name, 1)

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
                    self._bus._failed(self.name, error)
                handled += 1
                if handled % _BREATHE == 0:
                    await asyncio.sleep(0)
        finally:
            self._task = None


class EventBus:
    """
    Carries events from whoever publishes to whoever subscribed.

    Every subscriber has a bounded queue of its own: a slow one neither slows the publisher nor the
    others, it loses its oldest events, and the loss is counted. Events of ``ALERT_CLASS`` are never
    lost. An exception in a handler goes to ``on_error`` and nowhere else.

    Args:
        log: Where ``publish`` makes events durable first. Without one nothing is kept.
        on_drop: Is told (subscriber, how many) when events are dropped.
        on_error: Is told (subscriber, exception) when a handler raises; without it, it is logged.
        on_publish: Is shown everything fanned out, before the subscribers. Must be quick and not raise.
    """

    def __init__(
        self,
        *,
        log: EventLog | None = None,
        on_drop: Callable[[str, int], None] | None = None,
        on_error: Callable[[str, BaseException], None] | None = None,
        on_publish: Callable[[Sequence[AgentEvent]], None] | None = None,
    ) -> None:
        self._event_log = log
        self._on_drop = on_drop
        self._on_error = on_error
        self._on_publish = on_publish
        self._subscriptions: list[Subscription] = []
        self._routes: dict[EventType, tuple[Subscription, ...]] = {}
        self._closed = False

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """Who listens now."""
        return tuple(self._subscriptions)

    async def publish(self, *events: AgentEvent) -> None:
        """
        Make ``events`` durable, then hand them to every subscriber.

        Raises:
            Exception: Whatever the event log raised; then nobody has seen the events.
        """
        if self._event_log is not None and events:
            await self._event_log.append(events)
        self.fan_out(*events)

    def fan_out(self, *events: AgentEvent) -> None:
        """Hand over events that are durable already, or need not be. Never blocks; the loop's thread only."""
        if self._on_publish is not None and events:
            self._on_publish(events)
        routes = self._routes
        for event in events:
            route = routes.get(event.type)
            if route is None:
                route = routes[event.type] = self._route(event.type)
            for subscription in route:
                subscription._offer(event)

    def subscribe(
        self,
        handler: Handler,
        *,
        name: str,
        types: Collection[EventType] | None = None,
        graph_id: str | None = None,
        stream_id: str | None = None,
        node_id: str | None = None,
        agent_id: str | None = None,
        capacity: int = 10_000,
    ) -> Subscription:
        """
        Call ``handler`` for every event that matches; what is None matches everything.

        Args:
            handler: A plain or an async function of one event.
            name: Who this is, for the metric of dropped events: a fixed word, not an id.
            types: Event types wanted.
            graph_id: Only events of this graph.
            stream_id: Only events of this stream.
            node_id: Only events of this node. Node ids repeat between graphs: give ``graph_id`` too.
            agent_id: Only events of this worker.
            capacity: How many events may wait.

        Raises:
            ValueError: ``capacity`` is not positive.
            RuntimeError: The bus is closed.
        """
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if self._closed:
            raise RuntimeError(f"cannot subscribe {name!r}: the bus is closed")
        fields = {"graph_id": graph_id, "stream_id": stream_id, "node_id": node_id, "agent_id": agent_id}
        subscription = Subscription(
            self,
            handler,
            name=name,
            types=None if types is None else frozenset(types),
            where=tuple((field, value) for field, value in fields.items() if value is not None),
            capacity=capacity,
        )
        self._subscriptions.append(subscription)
        self._routes = {}
        return subscription

    async def drain(self) -> None:
        """
        Wait until every subscriber has handled what is queued now.

        What their handlers publish meanwhile is not waited for.

        Raises:
            RuntimeError: Called by a handler, which would wait for itself.
        """
        current = _current_task()
        markers = []
        for subscription in self._subscriptions:
            if subscription._task is not None and subscription._task is current:
                raise RuntimeError(
                    f"handler {subscription.name!r} cannot drain the bus: it would wait for itself"
                )
            markers.append(subscription._mark())
        if markers:
            await asyncio.wait(markers)

    async def close(self) -> None:
        """End every subscription and wait for their tasks; queued events are discarded (``drain`` first)."""
        self._closed = True
        tasks = [
            s._task for s in self._subscriptions if s._task is not None and s._task is not _current_task()
        ]
        for subscription in self.subscriptions:
            subscription.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _route(self, event_type: EventType) -> tuple[Subscription, ...]:
        return tuple(s for s in self._subscriptions if s._types is None or event_type in s._types)

    def _remove(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._routes = {}

    def _failed(self, name: str, error: BaseException) -> None:
        if self._on_error is None:
            _log.error("event handler %r failed", name, exc_info=error)
            return
        try:
            self._on_error(name, error)
        except Exception:
            _log.exception("on_error failed for event handler %r", name)


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
