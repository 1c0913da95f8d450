"""
The event bus: everything that happens goes through here, and nobody on it can slow or break anybody else.

A bus belongs to one event loop and is not thread-safe: from another thread, go through
``loop.call_soon_threadsafe(bus.fan_out, event)``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.deadline import Sleep
from queenright.runtime.event_filter import EventFilter
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.expectation import Expectation
from queenright.runtime.subscription import Handler, Subscription, current_task

__all__ = ["EventBus", "EventLog", "Expectation", "Handler", "Subscription", "UnknownEventError"]

_log = logging.getLogger(__name__)


class UnknownEventError(QueenrightError):
    """Raised when events are asked for after one that the log has not."""

    def __init__(self, event_id: str) -> None:
        super().__init__(
            f"event {event_id!r} is not in the log, so what came after it cannot be said; ask without `after`"
        )
        self.event_id = event_id


class EventLog(Protocol):
    """Where events are made durable before anyone acts on them, and read again."""

    def append(self, events: Sequence[AgentEvent]) -> Awaitable[None]:
        """Return once ``events`` would survive a crash."""
        ...

    def history(
        self,
        *,
        types: Collection[EventType] | None,
        filter_graph: str | None,
        filter_stream: str | None,
        filter_node: str | None,
        filter_agent: str | None,
        session_id: str | None,
        after: str | None,
        limit: int,
        newest: bool,
    ) -> Awaitable[list[AgentEvent]]:
        """Return what is in the log; see ``EventBus.history``."""
        ...


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
        self._listeners: list[Subscription | Expectation] = []
        self._routes: dict[EventType, tuple[Subscription | Expectation, ...]] = {}
        self._closed = False

    def connect(
        self,
        *,
        on_publish: Callable[[Sequence[AgentEvent]], None],
        on_drop: Callable[[str, int], None],
    ) -> None:
        """Set ``on_publish`` and ``on_drop``, for parts that need the bus before they can take them."""
        self._on_publish = on_publish
        self._on_drop = on_drop

    def report_drop(self, subscriber: str, count: int) -> None:
        """Report events that a subscriber lost, as ``on_drop`` says."""
        if self._on_drop is not None:
            self._on_drop(subscriber, count)

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """Who listens now."""
        return tuple(one for one in self._listeners if isinstance(one, Subscription))

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
            for listener in route:
                listener.offer(event)

    def subscribe(
        self,
        handler: Handler,
        *,
        name: str,
        types: Collection[EventType] | None = None,
        filter_graph: str | None = None,
        filter_stream: str | None = None,
        filter_node: str | None = None,
        filter_agent: str | None = None,
        capacity: int = 10_000,
    ) -> Subscription:
        """
        Call ``handler`` for every event that matches; what is None matches everything.

        Args:
            handler: A plain or an async function of one event.
            name: Who this is, for the metric of dropped events: a fixed word, not an id.
            types: Event types wanted.
            filter_graph: Only events of this graph.
            filter_stream: Only events of this stream.
            filter_node: Only events of this node. Node ids repeat between graphs: give
                ``filter_graph`` too.
            filter_agent: Only events of this worker.
            capacity: How many events may wait.

        Raises:
            ValueError: ``capacity`` is not positive.
            RuntimeError: The bus is closed.
        """
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if self._closed:
            raise RuntimeError(f"cannot subscribe {name!r}: the bus is closed")
        subscription = Subscription(
            handler,
            name=name,
            wanted=EventFilter(
                types=None if types is None else frozenset(types),
                graph=filter_graph,
                stream=filter_stream,
                node=filter_node,
                agent=filter_agent,
            ),
            capacity=capacity,
            remove=self._remove,
            on_drop=self.report_drop,
            on_error=self._failed,
        )
        self._listeners.append(subscription)
        self._routes = {}
        return subscription

    def expect(
        self,
        *types: EventType,
        filter_graph: str | None = None,
        filter_stream: str | None = None,
        filter_node: str | None = None,
        filter_agent: str | None = None,
        where: Callable[[AgentEvent], bool] | None = None,
    ) -> Expectation:
        """
        Begin at once to look out for an event, and await it later: nothing in between is missed.

        ``with bus.expect(EventType.EXECUTION_COMPLETED) as done: ...`` and then ``await done.within(5)``.

        Args:
            types: Any of these; none given is all.
            filter_graph: As for ``subscribe``, and so are the other filters.
            filter_stream: Only of this stream.
            filter_node: Only of this node.
            filter_agent: Only of this worker.
            where: What else must be so. Called by whoever publishes: must be quick.

        Raises:
            RuntimeError: The bus is closed, or no event loop is running.
        """
        if self._closed:
            raise RuntimeError("nothing can be expected: the bus is closed")
        expectation = Expectation(
            wanted=EventFilter(
                types=frozenset(types) if types else None,
                graph=filter_graph,
                stream=filter_stream,
                node=filter_node,
                agent=filter_agent,
            ),
            where=where,
            remove=self._remove,
        )
        self._listeners.append(expectation)
        self._routes = {}
        return expectation

    async def wait_for(
        self,
        *types: EventType,
        filter_graph: str | None = None,
        filter_stream: str | None = None,
        filter_node: str | None = None,
        filter_agent: str | None = None,
        where: Callable[[AgentEvent], bool] | None = None,
        timeout: float | None,  # noqa: ASYNC109 - the time goes by `sleep`
        sleep: Sleep = asyncio.sleep,
    ) -> AgentEvent:
        """
        Wait for an event; it looks out from when it is first awaited. For what happens before: ``expect``.

        Args:
            types: Any of these; none given is all.
            filter_graph: As for ``subscribe``, and so are the other filters.
            filter_stream: Only of this stream.
            filter_node: Only of this node.
            filter_agent: Only of this worker.
            where: What else must be so. Called by whoever publishes: must be quick.
            timeout: Seconds to wait at most; None waits for ever.
            sleep: The clock that the time goes by.

        Raises:
            TimeoutError: No such event came in time; says which.
            RuntimeError: The bus is closed, or was before one came.
        """
        expectation = self.expect(
            *types,
            filter_graph=filter_graph,
            filter_stream=filter_stream,
            filter_node=filter_node,
            filter_agent=filter_agent,
            where=where,
        )
        with expectation:
            return await expectation.within(timeout, sleep=sleep)

    async def history(
        self,
        *,
        types: Collection[EventType] | None = None,
        filter_graph: str | None = None,
        filter_stream: str | None = None,
        filter_node: str | None = None,
        filter_agent: str | None = None,
        session_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest: bool = True,
    ) -> list[AgentEvent]:
        """
        Return events from the log, oldest first; without a log there are none.

        What was fanned out without being published is in no log.

        Args:
            types: Only these; None is all, and an empty collection is none.
            filter_graph: Only of this graph.
            filter_stream: Only of this stream.
            filter_node: Only of this node.
            filter_agent: Only of this worker.
            session_id: Only of this session.
            after: Only what came after the event with this id: the last one of the page before.
            limit: At most so many.
            newest: Where there are more than ``limit``: the last of them, else the first.

        Raises:
            ValueError: ``limit`` is not positive.
            UnknownEventError: The log has no event ``after``.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        if self._event_log is None:
            return []
        return await self._event_log.history(
            types=types,
            filter_graph=filter_graph,
            filter_stream=filter_stream,
            filter_node=filter_node,
            filter_agent=filter_agent,
            session_id=session_id,
            after=after,
            limit=limit,
            newest=newest,
        )

    async def drain(self) -> None:
        """
        Wait until every subscriber has handled what is queued now.

        What their handlers publish meanwhile is not waited for.

        Raises:
            RuntimeError: Called by a handler, which would wait for itself.
        """
        current = current_task()
        markers = []
        for subscription in self.subscriptions:
            if subscription.task is not None and subscription.task is current:
                raise RuntimeError(
                    f"handler {subscription.name!r} cannot drain the bus: it would wait for itself"
                )
            markers.append(subscription.mark())
        if markers:
            await asyncio.wait(markers)

    async def close(self) -> None:
        """
        End every subscription and wait for their tasks; queued events are discarded (``drain`` first).

        Whoever waits for an event gets a RuntimeError.
        """
        self._closed = True
        tasks = [s.task for s in self.subscriptions if s.task is not None and s.task is not current_task()]
        for listener in tuple(self._listeners):
            if isinstance(listener, Subscription):
                listener.cancel()
            else:
                listener.fail(RuntimeError(f"the bus was closed before {listener.wanted} came"))
        await asyncio.gather(*tasks, return_exceptions=True)

    def _route(self, event_type: EventType) -> tuple[Subscription | Expectation, ...]:
        return tuple(s for s in self._listeners if s.wanted.types is None or event_type in s.wanted.types)

    def _remove(self, listener: Subscription | Expectation) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
            self._routes = {}

    def _failed(self, name: str, error: BaseException) -> None:
        if self._on_error is None:
            _log.error("event handler %r failed", name, exc_info=error)
            return
        try:
            self._on_error(name, error)
        except Exception:
            _log.exception("on_error failed for event handler %r", name)
