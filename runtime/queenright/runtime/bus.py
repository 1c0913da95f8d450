"""
The event bus: delivers events to subscribers and isolates them from each other.

A bus belongs to one event loop and is not thread-safe: from another thread, call
``loop.call_soon_threadsafe(bus.fan_out, event)``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from types import TracebackType
from typing import Any, Protocol, Unpack

from queenright.instrumentation.errors import NotFoundError
from queenright.runtime.deadline import Sleep, within
from queenright.runtime.event_filter import EventFilter, Filters, matches
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.subscription import Handler, Subscription, current_task

__all__ = ["EventBus", "EventLog", "Expectation", "Handler", "Subscription", "UnknownEventError"]

_log = logging.getLogger(__name__)


class UnknownEventError(NotFoundError):
    """Raised when the event after which history was requested is not in the log."""

    def __init__(self, event_id: str) -> None:
        super().__init__(f"event {event_id!r} is not in the log; repeat the request without this id")
        self.event_id = event_id


class EventLog(Protocol):
    """Stores events durably before anyone acts on them, and reads them back."""

    def append(self, events: Sequence[AgentEvent]) -> Awaitable[None]:
        """Store ``events``; return once they would survive a crash."""
        ...

    def history(
        self,
        *,
        types: Collection[EventType] | None,
        session_id: str | None,
        after: str | None,
        limit: int,
        newest: bool,
        **filters: Unpack[Filters],
    ) -> Awaitable[list[AgentEvent]]:
        """Read events from the log; see ``EventBus.history``."""
        ...


class EventBus:
    """
    Delivers published events to subscribers.

    Each subscriber has its own bounded queue. A slow subscriber does not delay the publisher or other
    subscribers; it loses its oldest events, and the loss is counted. Events of ``ALERT_CLASS`` are never
    dropped. An exception in a handler is passed to ``on_error``.

    Args:
        log: Stores events before ``publish`` delivers them; None stores nothing.
        on_drop: Called with the subscriber's name and the number of events when events are dropped.
        on_error: Called with the subscriber's name and the exception when a handler raises; by default
            the exception is logged.
    """

    def __init__(
        self,
        *,
        log: EventLog | None = None,
        on_drop: Callable[[str, int], None] | None = None,
        on_error: Callable[[str, BaseException], None] | None = None,
    ) -> None:
        self._event_log = log
        self._on_drop = on_drop
        self._on_error = on_error
        self._publish_listeners: list[Callable[[Sequence[AgentEvent]], None]] = []
        self._listeners: list[Subscription | Expectation] = []
        self._routes: dict[EventType, tuple[Subscription | Expectation, ...]] = {}
        self._is_closed = False

    def on_publish(self, listener: Callable[[Sequence[AgentEvent]], None]) -> None:
        """Call ``listener`` with all events before they are delivered. It must be fast and must not raise."""
        self._publish_listeners.append(listener)

    def report_drop(self, subscriber: str, count: int) -> None:
        """Report the events that a subscriber lost to ``on_drop``."""
        if self._on_drop is not None:
            self._on_drop(subscriber, count)

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """The current subscriptions."""
        return tuple(listener for listener in self._listeners if isinstance(listener, Subscription))

    async def publish(self, *events: AgentEvent) -> None:
        """
        Store ``events``, then deliver them to every subscriber.

        Raises:
            Exception: Whatever the event log raised; the events were not delivered.
        """
        if self._event_log is not None and events:
            await self._event_log.append(events)
        self.fan_out(*events)

    def fan_out(self, *events: AgentEvent) -> None:
        """Deliver events without storing them. Never blocks; call only from the loop's thread."""
        if events:
            for notify in self._publish_listeners:
                notify(events)
        routes = self._routes
        for event in events:
            route = routes.get(event.type)
            if route is None:
                route = routes[event.type] = self._list_listeners(event.type)
            for listener in route:
                listener.offer(event)

    def subscribe(
        self,
        handler: Handler,
        *,
        name: str,
        types: Collection[EventType] | None = None,
        capacity: int = 10_000,
        **filters: Unpack[Filters],
    ) -> Subscription:
        """
        Call ``handler`` for every event that matches all filters; a filter that is None matches everything.

        Args:
            name: Label of the dropped-events metric: a fixed word, not an id.
            filters: Conditions on the origin of the events; see ``Filters``.

        Raises:
            ValueError: ``capacity`` is not positive.
            RuntimeError: The bus is closed.
        """
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if self._is_closed:
            raise RuntimeError(f"cannot subscribe {name!r}: the bus is closed")
        subscription = Subscription(
            handler,
            name=name,
            event_filter=EventFilter(None if types is None else frozenset(types), filters),
            capacity=capacity,
            remove=self._remove,
            on_drop=self.report_drop,
            on_error=self._handle_error,
        )
        self._listeners.append(subscription)
        self._routes = {}
        return subscription

    def expect(
        self,
        *types: EventType,
        where: Callable[[AgentEvent], bool] | None = None,
        **filters: Unpack[Filters],
    ) -> Expectation:
        """
        Start to wait for an event now and await it later, so that no event is missed.

        ``with bus.expect(EventType.EXECUTION_COMPLETED) as done: ...`` and then ``await done.within(5)``.

        Args:
            types: Any of these types; all types if none is given.
            where: Additional condition. Called by the publisher: must be fast.

        Raises:
            RuntimeError: The bus is closed, or no event loop is running.
        """
        if self._is_closed:
            raise RuntimeError("cannot expect an event: the bus is closed")
        expectation = Expectation(
            event_filter=EventFilter(frozenset(types) if types else None, filters),
            where=where,
            remove=self._remove,
        )
        self._listeners.append(expectation)
        self._routes = {}
        return expectation

    async def wait_for(
        self,
        *types: EventType,
        where: Callable[[AgentEvent], bool] | None = None,
        timeout: float | None,  # noqa: ASYNC109 - measured with `sleep`
        sleep: Sleep = asyncio.sleep,
        **filters: Unpack[Filters],
    ) -> AgentEvent:
        """
        Wait for an event that is published from now on; use ``expect`` to start earlier.

        Args:
            types: Any of these types; all types if none is given.
            where: Additional condition. Called by the publisher: must be fast.
            timeout: Maximum seconds to wait; None waits forever.

        Raises:
            TimeoutError: No such event was published in time; names the event.
            RuntimeError: The bus is closed, or was closed while waiting.
        """
        with self.expect(*types, where=where, **filters) as expectation:
            return await expectation.within(timeout, sleep=sleep)

    async def history(
        self,
        *,
        types: Collection[EventType] | None = None,
        session_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest: bool = True,
        **filters: Unpack[Filters],
    ) -> list[AgentEvent]:
        """
        Return events from the log, oldest first; an empty list without a log.

        Events that were only fanned out are not in the log.

        Args:
            types: Only events of these types; None for all, an empty collection for no events.
            after: Only events after the one with this id, such as the last one of the previous page.
            newest: Whether to return the newest or the oldest events if there are more than ``limit``.

        Raises:
            ValueError: ``limit`` is not positive.
            UnknownEventError: The log has no event with the id ``after``.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        if self._event_log is None:
            return []
        return await self._event_log.history(
            types=types, session_id=session_id, after=after, limit=limit, newest=newest, **filters
        )

    async def drain(self) -> None:
        """
        Wait until every subscriber has handled the events queued so far.

        Does not wait for events that handlers publish in the meantime.

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
            markers.append(subscription.add_marker())
        if markers:
            await asyncio.wait(markers)

    async def close(self) -> None:
        """
        End every subscription and wait for its task. Queued events are discarded; call ``drain`` first.

        Pending waits for events raise RuntimeError.
        """
        self._is_closed = True
        tasks = [s.task for s in self.subscriptions if s.task is not None and s.task is not current_task()]
        for listener in tuple(self._listeners):
            if isinstance(listener, Subscription):
                listener.cancel()
            else:
                listener.fail(RuntimeError(f"the bus was closed while waiting for {listener.event_filter}"))
        await asyncio.gather(*tasks, return_exceptions=True)

    def _list_listeners(self, event_type: EventType) -> tuple[Subscription | Expectation, ...]:
        return tuple(
            s for s in self._listeners if s.event_filter.types is None or event_type in s.event_filter.types
        )

    def _remove(self, listener: Subscription | Expectation) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
            self._routes = {}

    def _handle_error(self, name: str, error: BaseException) -> None:
        if self._on_error is None:
            _log.error("event handler %r failed", name, exc_info=error)
            return
        try:
            self._on_error(name, error)
        except Exception:
            _log.exception("on_error failed for event handler %r", name)


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
