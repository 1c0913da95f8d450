"""
One thread and two bounded queues between the agent and the network.

Callers only append to a queue. Start records are sent before the spans that have ended by then, so that
a start never arrives after its end. Undelivered items are kept while there is room; when a queue is full,
the oldest items are dropped and counted.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

from queenright.instrumentation.counts import format_count
from queenright.instrumentation.drop_counter import DROPPED, Signal
from queenright.instrumentation.error_guard import suppress_errors, warn_once
from queenright.instrumentation.forks import after_fork_in_child

T = TypeVar("T")

BATCH: Final = 512
"""Maximum records or spans per request."""

_BACKOFF_LIMIT: Final = 30.0

SILENT_FAILURES: Final = 5
"""Failures, over about 10 s, that are not logged: the service may be starting, or the exit logs the loss."""

FINAL_DELIVERY_SECONDS: Final = 5.0
"""Time that an exiting process keeps retrying if the service was reachable before; it may be restarting."""


class SendResult(Enum):
    """The result of an attempt to send a batch."""

    DELIVERED = "delivered"
    RETRY = "retry"
    REJECTED = "rejected"


class Sender(Protocol):
    """Sends batches; called only from the delivery thread."""

    destination: str
    """Where the last batch was sent, and why it failed; for messages."""

    def send(self, signal: Signal, batch: Sequence[Any]) -> SendResult:
        """Deliver one batch; never raises."""

    def close(self) -> None:
        """Close the connections; called last."""


class _Queue(Generic[T]):
    """A bounded queue that drops and counts the oldest items."""

    def __init__(self, signal: Signal, capacity: int) -> None:
        self.signal = signal
        self.items: deque[T] = deque(maxlen=capacity)

    def put(self, item: T) -> int:
        items = self.items
        size = len(items)
        if size == items.maxlen:
            DROPPED.count(self.signal)
        items.append(item)
        return size

    def take(self, number: int) -> list[T]:
        items = self.items
        return [items.popleft() for _ in range(min(number, len(items)))]

    def put_back(self, batch: list[T]) -> None:
        """Return an undelivered batch to the head of the queue; without room for all, keep the newest."""
        items = self.items
        room = (items.maxlen or 0) - len(items)
        if room < len(batch):
            DROPPED.count(self.signal, len(batch) - room)
            batch = batch[len(batch) - room :]
        items.extendleft(reversed(batch))


class Delivery:
    """
    Sends queued items from a thread that starts with the first item.

    Args:
        connect: Creates the sender; called in the thread, and again after a fork.
        interval: Seconds between deliveries.
        capacity: Maximum queued spans, and maximum queued records.
    """

    def __init__(self, connect: Callable[[], Sender], *, interval: float = 0.5, capacity: int = 8192) -> None:
        self._connect = connect
        self._interval = interval
        self._records: _Queue[Any] = _Queue("logs", capacity)
        self._spans: _Queue[Any] = _Queue("spans", capacity)
        self._is_closed = False
        self._give_up_at = 0.0
        self._reset()
        after_fork_in_child(self._reset_after_fork)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wake_event = threading.Event()
        self._flush_events: list[threading.Event] = []
        self._thread: threading.Thread | None = None
        self._sender: Sender | None = None
        self._failures = 0
        self._in_flight = 0
        self._has_delivered = False

    def _reset_after_fork(self) -> None:
        # Queued items and the connection belong to the parent.
        self._records.items.clear()
        self._spans.items.clear()
        self._reset()

    def put_record(self, record: Any) -> None:
        """Queue a start record."""
        self._put(self._records, record)

    def put_span(self, span: Any) -> None:
        """Queue an ended span."""
        self._put(self._spans, span)

    def _put(self, queue: _Queue[Any], item: Any) -> None:
        if queue.put(item) >= BATCH and not self._failures and not self._wake_event.is_set():
            self._wake_event.set()
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._is_closed:
                return
            thread = threading.Thread(target=self._run, name="queenright-delivery", daemon=True)
            thread.start()
            self._thread = thread
        _close_at_exit_of_child(self)

    def flush(self, timeout: float) -> bool:
        """Send queued items now; return whether all were delivered within ``timeout`` seconds."""
        if self._thread is None:
            return not self._records.items and not self._spans.items
        flush_event = threading.Event()
        self._flush_events.append(flush_event)
        self._wake_event.set()
        return flush_event.wait(timeout) and not self._records.items and not self._spans.items

    def close(self, timeout: float = 2.0) -> None:
        """
        Send queued items for at most ``timeout`` seconds; drop and count the rest, and warn.

        If the service was reachable before, retry for up to ``FINAL_DELIVERY_SECONDS``: losing the end of a
        run while the service restarts would look like a process that died.
        """
        if self._is_closed:
            return
        if self._has_delivered:
            timeout = max(timeout, FINAL_DELIVERY_SECONDS)
        self._give_up_at = time.monotonic() + timeout
        self._is_closed = True
        thread = self._thread
        self._wake_event.set()
        if thread is not None and thread.is_alive():
            thread.join(timeout)
        loss_count = self._in_flight
        for queue in (self._records, self._spans):
            if queue.items:
                loss_count += len(queue.items)
                DROPPED.count(queue.signal, len(queue.items))
                queue.items.clear()
        if loss_count:
            warn_once(
                "Queenright lost %s at exit: %s did not accept them. "
                "Start the service, or set OTEL_EXPORTER_OTLP_ENDPOINT to its address.",
                format_count(loss_count, "telemetry record"),
                self._sender.destination if self._sender else "the service",
            )

    def _run(self) -> None:
        while not self._is_closed:
            self._wake_event.wait(self._get_pause())
            self._wake_event.clear()
            self._deliver_queued()
        # Items queued during the last delivery, such as the end of the run, or not delivered yet.
        while self._has_delivered and (self._records.items or self._spans.items):
            remaining = self._give_up_at - time.monotonic()
            if remaining <= 0:
                break
            time.sleep(min(self._interval, remaining))
            self._deliver_queued()
        if self._sender is not None:
            with suppress_errors:
                self._sender.close()

    def _get_pause(self) -> float:
        """Return the seconds until the next attempt, with exponential backoff."""
        if not self._failures:
            return self._interval
        max_pause = min(_BACKOFF_LIMIT, self._interval * 2.0 ** min(self._failures, 16))
        return max_pause * random.uniform(0.5, 1.0)

    def _deliver_queued(self) -> None:
        flush_events, self._flush_events = self._flush_events, []
        is_success = False
        with suppress_errors:
            # Spans are counted first, because every start record is queued before the end of its span.
            span_count, record_count = len(self._spans.items), len(self._records.items)
            if (span_count or record_count) and self._sender is None:
                self._sender = self._connect()
            is_success = self._drain(self._records, record_count) and self._drain(self._spans, span_count)
        self._failures = 0 if is_success else self._failures + 1
        if self._failures > SILENT_FAILURES and self._sender is not None:
            warn_once(
                "Queenright cannot deliver telemetry to %s; the agent continues and delivery is retried "
                "until it exits.",
                self._sender.destination,
            )
        for flush_event in flush_events:
            flush_event.set()

    def _drain(self, queue: _Queue[Any], number: int) -> bool:
        while number > 0 and self._sender is not None:
            batch = queue.take(min(BATCH, number))
            number -= len(batch)
            result = SendResult.REJECTED
            self._in_flight = len(batch)
            with suppress_errors:
                result = self._sender.send(queue.signal, batch)
            self._in_flight = 0
            if result is SendResult.RETRY:
                queue.put_back(batch)
                return False
            if result is SendResult.REJECTED:
                DROPPED.count(queue.signal, len(batch))
            self._has_delivered = self._has_delivered or result is SendResult.DELIVERED
        return True


def _close_at_exit_of_child(delivery: Delivery) -> None:
    """Deliver at the exit of a ``multiprocessing`` child, which does not run ``atexit`` hooks."""
    if "multiprocessing" not in sys.modules:
        return
    from multiprocessing import parent_process, util

    if parent_process() is not None:
        util.Finalize(None, delivery.close, exitpriority=10)
