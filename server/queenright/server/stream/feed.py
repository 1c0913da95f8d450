"""
Stream the event log to readers, in log order.

The newest events are in memory, each formatted once for all readers. A reader has a position in the log and
reads the events after it, from memory or, if it is too far behind, from the database. No logged event is
skipped, even if a slow reader falls behind.

Text deltas of models are not logged. Each reader has a short queue of them. When it is full, the oldest are
dropped, and the reader gets their number.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from queenright.health.store.event_log import LogSegment, Place, find_place
from queenright.health.store.store import Store
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import TRANSIENT, AgentEvent
from queenright.server.stream.lines import (
    LogLine,
    LogSlice,
    StreamFilter,
    format_event,
    read_log_slice,
    select_lines,
)

_log = logging.getLogger(__name__)

SUBSCRIBER: Final = "event-stream"
"""The label of all stream readers in the metric of dropped events."""

_CHECK_SECONDS: Final = 1.0
_MAX_ROWS: Final = 20_000
"""Maximum rows that one database read scans."""
_WAKE_BATCH: Final = 16
"""Readers to wake in one iteration of the event loop, which takes about 1 ms."""
_PAUSE_FACTOR: Final = 4
"""Pause per second of work, so that the event loop spends at most a fifth of its time on streams."""
_MAX_LOGGED_IDS: Final = 10_000
_KEEP_ALIVE_SECONDS: Final = 15.0
"""Seconds of silence before an `alive` event."""
_SEND_TIMEOUT_SECONDS: Final = 30.0
"""Seconds after which a client that does not receive data is disconnected."""
_READ_BYTES: Final = 65_536
"""Maximum bytes per read. A slow client keeps about this much in memory."""

EXPIRED_REASON: Final = (
    "events after this one have expired (health_monitoring.retention); "
    "the stream continues with the oldest available event"
)


class Feed:
    """
    Follows the log of a store. An instance belongs to one event loop.

    Args:
        store: The store of the log; the feed sets its ``on_commit``.
        on_drop: Called with ``SUBSCRIBER`` and a count when text deltas are dropped.
        max_recent: Maximum events kept in memory while there are readers.
        batch_seconds: Seconds in which events are collected before readers wake.
        clock: A monotonic clock, in seconds.
        sleep: Sleeps on that clock.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_drop: Callable[[str, int], None] = lambda name, count: None,
        max_recent: int = 10_000,
        batch_seconds: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._store = store
        self._on_drop = on_drop
        self._max_recent = max_recent
        self._batch_seconds = batch_seconds
        self.clock = clock
        self._sleep = sleep
        self._lines: list[LogLine] = []
        """The recent events, consecutive by sequence number. The last one is at ``_head``."""
        self._head = Place(0, "")
        self._released_seq = 0
        """The sequence number up to which readers may read. Later events wait for the next wakeup."""
        self._readers: set[Reader] = set()
        self._logged_ids: set[str] = set()
        """Ids of text deltas that are in the log, and that the bus has not delivered yet."""
        self._slices: dict[tuple[StreamFilter, int], LogSlice] = {}
        """Slices since the last wakeup. Readers at the same position share a slice."""
        self._wakeup: asyncio.TimerHandle | None = None
        self._next_wakeup_at = float("-inf")
        self.is_closed = False

    def __repr__(self) -> str:
        return f"Feed(head={self._head.seq}, readers={len(self._readers)})"

    @property
    def readers(self) -> int:
        """The number of readers."""
        return len(self._readers)

    @property
    def recent(self) -> Sequence[LogLine]:
        """The recent events in memory."""
        return self._lines

    @property
    def head(self) -> Place:
        """The end of the log."""
        return self._head

    @property
    def released_seq(self) -> int:
        """The sequence number up to which readers may read."""
        return self._released_seq

    async def start(self) -> None:
        """
        Find the end of the log and follow it from there.

        Raises:
            StoreError: The database failed.
        """
        self._store.on_commit(self.add_committed)
        place = await self.find_position()
        if place is not None and place.seq > self._head.seq:
            self._head = place

    async def run(self, stopping: asyncio.Event) -> None:
        """Check the readers until ``stopping`` is set, then end all streams."""
        stop = asyncio.ensure_future(stopping.wait())
        try:
            while not stop.done():
                tick = asyncio.ensure_future(self._sleep(_CHECK_SECONDS))
                try:
                    await asyncio.wait((stop, tick), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    tick.cancel()
                self._check_readers_safely()
        finally:
            stop.cancel()
            self.close()

    def _check_readers_safely(self) -> None:
        try:
            self.check_readers()
        except Exception:
            _log.exception("checking the event streams failed; retrying")

    def check_readers(self) -> None:
        """Disconnect stalled clients, and send keep-alives on silent streams."""
        now = self.clock()
        for reader in tuple(self._readers):
            if reader.sending_since is not None:
                if now - reader.sending_since >= _SEND_TIMEOUT_SECONDS:
                    reader.disconnect()
            elif now - reader.sent_at >= _KEEP_ALIVE_SECONDS:
                reader.request_keep_alive()

    def close(self) -> None:
        """End all streams, including those of stalled clients. Later readers end immediately."""
        self.is_closed = True
        if self._wakeup is not None:
            self._wakeup.cancel()
        for reader in tuple(self._readers):
            if reader.sending_since is None:
                reader.end()
            else:
                reader.disconnect()

    async def find_position(self, event_id: str | None = None) -> Place | None:
        """
        Return the position of an event in the log, or None. Without an id, return the end of the log.

        Raises:
            StoreError: The database failed.
        """
        return await self._store.read(lambda conn: find_place(conn, event_id))

    def open(self, event_filter: StreamFilter, *, after: Place | None = None, capacity: int = 1000) -> Reader:
        """
        Open a reader. The caller must close it.

        Args:
            event_filter: The events to read.
            after: The position to start after; the end of the log by default.
            capacity: Maximum text deltas that may wait.
        """
        if not self._readers:
            self._released_seq = self._head.seq
        reader = Reader(self, event_filter, after or self._head, capacity=capacity)
        self._readers.add(reader)
        if self.is_closed:
            reader.end()
        return reader

    def remove(self, reader: Reader) -> None:
        """Remove a reader. Without readers, no events are kept."""
        self._readers.discard(reader)
        if not self._readers:
            self._lines = []
            self._logged_ids.clear()
            self._slices.clear()

    # -- input ----------------------------------------------------------------------------------

    def add_committed(self, segments: Sequence[LogSegment]) -> None:
        """Add committed events. This is the callback for ``Store.on_commit``."""
        last_seq, event = segments[-1][0] + len(segments[-1][1]) - 1, segments[-1][1][-1]
        if self._readers:
            for first_seq, events in segments:
                self._add(first_seq, events)
            self._schedule_wakeup()
        self._head = Place(last_seq, event.id)

    def _add(self, first_seq: int, events: Sequence[AgentEvent]) -> None:
        if self._lines and self._lines[-1].seq != first_seq - 1:
            self._lines = []
        self._lines += [LogLine(first_seq + index, event) for index, event in enumerate(events)]
        if len(self._lines) > 2 * self._max_recent:
            del self._lines[: -self._max_recent]
        self._logged_ids.update(event.id for event in events if event.type in TRANSIENT)
        if len(self._logged_ids) > _MAX_LOGGED_IDS:
            self._logged_ids.clear()

    def add_transient(self, events: Sequence[AgentEvent]) -> None:
        """Add text deltas from the bus that are not in the log."""
        if not self._readers:
            return
        for event in events:
            if event.type not in TRANSIENT:
                continue
            if event.id in self._logged_ids:
                self._logged_ids.discard(event.id)
                continue
            self._offer(event)

    def _offer(self, event: AgentEvent) -> None:
        text = b""
        for reader in self._readers:
            if reader.event_filter.matches(event):
                text = text or format_event(event, event_id=None)
                if dropped_count := reader.offer(self._head.seq, text):
                    self._on_drop(SUBSCRIBER, dropped_count)
        if text:
            self._schedule_wakeup()

    # -- wakeups --------------------------------------------------------------------------------

    def _schedule_wakeup(self) -> None:
        """Wake the readers ``batch_seconds`` after the last wakeup, or later if there are many."""
        if self._wakeup is None:
            loop = asyncio.get_running_loop()
            self._wakeup = loop.call_at(max(loop.time(), self._next_wakeup_at), self._wake_all)

    def _wake_all(self) -> None:
        self._wakeup = None
        self._released_seq = self._head.seq
        self._slices.clear()
        started_at = asyncio.get_running_loop().time()
        self._next_wakeup_at = started_at + self._batch_seconds
        self._wake([reader for reader in self._readers if reader.is_waiting], started_at)

    def _wake(self, readers: list[Reader], started_at: float) -> None:
        loop = asyncio.get_running_loop()
        for reader in readers[:_WAKE_BATCH]:
            reader.wake()
        if remaining_readers := readers[_WAKE_BATCH:]:
            pause_from = loop.time() + _PAUSE_FACTOR * (loop.time() - started_at)
            self._next_wakeup_at = max(self._next_wakeup_at, pause_from)
            loop.call_soon(self._wake, remaining_readers, started_at)

    # -- reading --------------------------------------------------------------------------------

    async def read_next(self, event_filter: StreamFilter, after: int, limit: int) -> LogSlice:
        """
        Return the next slice after ``after``, which must precede `released_seq`. It may have no events.

        Raises:
            StoreError: The slice is not in memory, and the database failed.
        """
        if not self._lines or after < self._lines[0].seq - 1:
            through = min(self._released_seq, after + _MAX_ROWS)
            return await self._store.read(
                lambda conn: read_log_slice(conn, event_filter, after, through, limit)
            )
        batch = self._slices.get((event_filter, after))
        if batch is None:
            first_seq = self._lines[0].seq
            lines = self._lines[after + 1 - first_seq : self._released_seq + 1 - first_seq]
            batch = self._slices[event_filter, after] = select_lines(lines, event_filter, after, limit)
        return batch


class Reader:
    """
    Reads the feed from a position. Created by ``Feed.open``.

    The caller calls ``mark_sending`` before and ``mark_sent`` after it sends data, and sets ``on_disconnect``
    to a function that disconnects the client.
    """

    def __init__(self, feed: Feed, event_filter: StreamFilter, after: Place, *, capacity: int) -> None:
        self._feed = feed
        self.event_filter = event_filter
        self.place = after.seq
        self._transient: deque[tuple[int, bytes]] = deque()
        """Text deltas, each with the sequence number after which it arrived."""
        self._capacity = capacity
        self._dropped_count = 0
        self._waiting: asyncio.Future[None] | None = None
        self._is_keep_alive_due = False
        self._is_ended = False
        self.on_disconnect: Callable[[], None] | None = None
        self.sending_since: float | None = None
        self.sent_at = feed.clock()

    @property
    def is_waiting(self) -> bool:
        """Whether the reader waits for a wakeup."""
        return self._waiting is not None

    # -- for the feed ---------------------------------------------------------------------------

    def offer(self, after: int, text: bytes) -> int:
        """Queue a text delta, and return the number of dropped deltas."""
        dropped_count = 0
        if len(self._transient) >= self._capacity:
            self._transient.popleft()
            dropped_count = 1
        self._transient.append((after, text))
        self._dropped_count += dropped_count
        return dropped_count

    def wake(self) -> None:
        """Wake the reader."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def request_keep_alive(self) -> None:
        """Make ``read`` return an `alive` event."""
        self._is_keep_alive_due = True
        self.wake()

    def end(self) -> None:
        """Make ``read`` return None."""
        self._is_ended = True
        self.wake()

    def disconnect(self) -> None:
        """Disconnect a stalled client, without the end of its stream."""
        self._is_ended = True
        on_disconnect, self.on_disconnect = self.on_disconnect, None
        # Abort only once, because an abort takes several iterations of the event loop.
        if on_disconnect is not None:
            on_disconnect()

    # -- for the caller -------------------------------------------------------------------------

    def close(self) -> None:
        """Stop reading and leave the feed."""
        self.end()
        self._feed.remove(self)

    def mark_sending(self) -> None:
        """Record that data is being sent."""
        self.sending_since = self._feed.clock()

    def mark_sent(self) -> None:
        """Record that the data was sent."""
        self.sending_since = None
        self.sent_at = self._feed.clock()

    async def read(self) -> bytes | None:
        """
        Wait for the next data, and return it; None at the end of the stream.

        Raises:
            StoreError: The database failed.
        """
        while not self._is_ended:
            chunk = b""
            if self.place < self._feed.released_seq:
                batch = await self._feed.read_next(self.event_filter, self.place, _READ_BYTES)
                self.place = batch.through
                chunk = (format_reset(EXPIRED_REASON) if batch.has_gap else b"") + self._merge(batch)
            elif self._transient and self._transient[0][0] <= self.place:
                chunk = self._merge(LogSlice(self.place))
            elif self._is_keep_alive_due:
                chunk = self._format_keep_alive()
            else:
                await self._wait()
            if chunk:
                self._is_keep_alive_due = False
                return chunk
        return None

    async def _wait(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _merge(self, batch: LogSlice) -> bytes:
        """Merge the text deltas into a slice of the log, in order of arrival."""
        if not self._transient or self._transient[0][0] > batch.through:
            return batch.text
        parts = [self._format_dropped_block()]
        for seq, text in batch.parts:
            while self._transient and self._transient[0][0] < seq:
                parts.append(self._transient.popleft()[1])
            parts.append(text)
        while self._transient and self._transient[0][0] <= batch.through:
            parts.append(self._transient.popleft()[1])
        return b"".join(parts)

    def _format_dropped_block(self) -> bytes:
        count, self._dropped_count = self._dropped_count, 0
        return b'event: dropped\ndata: {"count":%d}\n\n' % count if count else b""

    def _format_keep_alive(self) -> bytes:
        head = self._feed.head
        # All earlier events were scanned, so a client that resumes can skip them.
        resume_id = head.event_id if head.seq == self.place else ""
        # A named event with data, because browsers do not expose comments to scripts.
        return b"event: alive\ndata: {}\n" + format_id_line(resume_id) + b"\n"


def format_id_line(event_id: str) -> bytes:
    """Return the line with the id to resume after."""
    return f"id: {event_id}\n".encode() if event_id and event_id.isprintable() else b""


def format_reset(reason: str) -> bytes:
    """Return an event which states that earlier events may be missing, and why."""
    return b"event: reset\ndata: %b\n\n" % orjson.dumps({"reason": reason})
