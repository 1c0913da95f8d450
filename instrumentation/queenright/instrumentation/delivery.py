"""
Delivery: one thread and two bounded queues between the agent and the network.

The caller's side only appends to a queue. Start records go out before the spans that were
ended by then, so that a start never arrives after its end. What cannot be delivered is kept
while there is room, the oldest given up and counted when there is none.
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

from queenright.instrumentation.dropped import DROPPED, Signal
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.harmless import harmless

T = TypeVar("T")

BATCH: Final = 512
"""At most this many records or spans in one request."""

_BACKOFF_LIMIT: Final = 30.0

LAST_WORD_SECONDS: Final = 5.0
"""So long an ending process tries to deliver its end to a service that was there before, and may restart."""


class Sent(Enum):
    """How an attempt to deliver a batch ended."""

    DONE = "done"
    LATER = "later"
    REFUSED = "refused"


class Sender(Protocol):
    """Where batches go; called in the delivery's thread only."""

    def send(self, signal: Signal, batch: Sequence[Any]) -> Sent:
        """Deliver one batch; never raises."""

    def close(self) -> None:
        """Close connections; nothing is sent after."""


class _Queue(Generic[T]):
    """A bounded queue that gives up the oldest and counts it."""

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
        """Return an undelivered batch to the head, as much as there is room for, the newest first."""
        items = self.items
        room = (items.maxlen or 0) - len(items)
        if room < len(batch):
            DROPPED.count(self.signal, len(batch) - room)
            batch = batch[len(batch) - room :]
        items.extendleft(reversed(batch))


class Delivery:
    """
    Sends what is queued, from a thread that starts with the first item.

    Args:
        connect: Makes the sender; called in the thread, and again after a fork.
        interval: Seconds between deliveries.
        capacity: How many spans, and how many records, are kept at most.
    """

    def __init__(self, connect: Callable[[], Sender], *, interval: float = 0.5, capacity: int = 8192) -> None:
        self._connect = connect
        self._interval = interval
        self._records: _Queue[Any] = _Queue("logs", capacity)
        self._spans: _Queue[Any] = _Queue("spans", capacity)
        self._closed = False
        self._give_up_at = 0.0
        self._reset()
        after_fork_in_child(self._forked)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._waiting: list[threading.Event] = []
        self._thread: threading.Thread | None = None
        self._sender: Sender | None = None
        self._failures = 0
        self._delivered = False

    def _forked(self) -> None:
        # What is queued belongs to the parent, which sends it. So does its connection.
        self._records.items.clear()
        self._spans.items.clear()
        self._reset()

    def put_record(self, record: Any) -> None:
        """Queue a start record."""
        if self._records.put(record) >= BATCH and not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self._start()

    def put_span(self, span: Any) -> None:
        """Queue an ended span."""
        if self._spans.put(span) >= BATCH and not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._closed:
                return
            thread = threading.Thread(target=self._run, name="queenright-delivery", daemon=True)
            thread.start()
            self._thread = thread
        _close_at_exit_of_child(self)

    def flush(self, timeout: float) -> bool:
        """Send what is queued now; return whether all of it was delivered within ``timeout`` seconds."""
        if self._thread is None:
            return not self._records.items and not self._spans.items
        done = threading.Event()
        self._waiting.append(done)
        self._wake.set()
        return done.wait(timeout) and not self._records.items and not self._spans.items

    def close(self, timeout: float = 2.0) -> None:
        """
        Send what is queued, for at most ``timeout`` seconds; the rest is given up and counted.

        Where something was delivered before it is tried again for up to ``LAST_WORD_SECONDS``: the end of a
        run that is lost while the service restarts looks like a process that died.
        """
        if self._closed:
            return
        if self._delivered:
            timeout = max(timeout, LAST_WORD_SECONDS)
        self._give_up_at = time.monotonic() + timeout
        self._closed = True
        thread = self._thread
        self._wake.set()
        if thread is not None and thread.is_alive():
            thread.join(timeout)
        for queue in (self._records, self._spans):
            if queue.items:
                DROPPED.count(queue.signal, len(queue.items))
                queue.items.clear()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._pause())
            self._wake.clear()
            self._cycle()
        # What came in during the last delivery, such as the end of the run, or could not be delivered yet.
        while self._delivered and (self._records.items or self._spans.items):
            left = self._give_up_at - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(self._interval, left))
            self._cycle()
        if self._sender is not None:
            with harmless:
                self._sender.close()

    def _pause(self) -> float:
        """Return the seconds to the next attempt, longer with every failure."""
        if not self._failures:
            return self._interval
        longest = min(_BACKOFF_LIMIT, self._interval * 2.0 ** min(self._failures, 16))
        return longest * random.uniform(0.5, 1.0)

    def _cycle(self) -> None:
        waiting, self._waiting = self._waiting, []
        went_well = False
        with harmless:
            # Counted first: every span's start record is queued before the span's end is.
            spans, records = len(self._spans.items), len(self._records.items)
            if (spans or records) and self._sender is None:
                self._sender = self._connect()
            went_well = self._drain(self._records, records) and self._drain(self._spans, spans)
        self._failures = 0 if went_well else self._failures + 1
        for done in waiting:
            done.set()

    def _drain(self, queue: _Queue[Any], number: int) -> bool:
        while number > 0 and self._sender is not None:
            batch = queue.take(min(BATCH, number))
            number -= len(batch)
            sent = Sent.REFUSED
            with harmless:
                sent = self._sender.send(queue.signal, batch)
            if sent is Sent.LATER:
                queue.put_back(batch)
                return False
            if sent is Sent.REFUSED:
                DROPPED.count(queue.signal, len(batch))
            self._delivered = self._delivered or sent is Sent.DONE
        return True


def _close_at_exit_of_child(delivery: Delivery) -> None:
    """Have a child of ``multiprocessing`` deliver before it leaves: it passes by ``atexit``."""
    if "multiprocessing" not in sys.modules:
        return
    from multiprocessing import parent_process, util

    if parent_process() is not None:
        util.Finalize(None, delivery.close, exitpriority=10)
