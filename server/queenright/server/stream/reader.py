"""A reader of the feed: its position in the log, and the text deltas that wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import orjson

from queenright.health.event_log import Place
from queenright.server.stream.lines import EventFilter, LogSlice

if TYPE_CHECKING:
    from queenright.server.stream.feed import Feed

_READ_BYTES: Final = 65_536
"""Bytes per read; also about what a slow client keeps in memory."""

LOST: Final = (
    "events after this one have expired (health_monitoring.retention); "
    "the stream continues with the oldest available event"
)


class Reader:
    """
    Reads the feed from a position. Created by ``Feed.open``.

    The caller calls ``mark_sending`` before and ``mark_sent`` after it sends data, and sets ``on_disconnect``
    to a function that disconnects the client.
    """

    def __init__(self, feed: Feed, event_filter: EventFilter, after: Place, *, capacity: int) -> None:
        self._feed = feed
        self.event_filter = event_filter
        self.place = after.seq
        self._transient: deque[tuple[int, bytes]] = deque()
        """Text deltas, each with the sequence number after which it arrived."""
        self._capacity = capacity
        self._dropped = 0
        self._waiting: asyncio.Future[None] | None = None
        self._is_keep_alive_due = False
        self._ended = False
        self.on_disconnect: Callable[[], None] | None = None
        self.sending_since: float | None = None
        self.sent_at = feed.clock()

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a wakeup."""
        return self._waiting is not None

    # -- for the feed ---------------------------------------------------------------------------

    def offer(self, after: int, text: bytes) -> int:
        """Queue a text delta; return the number of dropped ones."""
        dropped = 0
        if len(self._transient) >= self._capacity:
            self._transient.popleft()
            dropped = 1
        self._transient.append((after, text))
        self._dropped += dropped
        return dropped

    def wake(self) -> None:
        """Wake the reader."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def request_keep_alive(self) -> None:
        """Make ``read`` return a keep-alive comment."""
        self._is_keep_alive_due = True
        self.wake()

    def end(self) -> None:
        """Make ``read`` return None from now on."""
        self._ended = True
        self.wake()

    def disconnect(self) -> None:
        """Disconnect a stalled client."""
        self._ended = True
        on_disconnect, self.on_disconnect = self.on_disconnect, None  # once: it takes several turns
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
        Wait for the next data and return it; None at the end of the stream.

        Raises:
            StoreError: The database failed.
        """
        while not self._ended:
            piece = b""
            if self.place < self._feed.released_seq:
                batch = await self._feed.read_next(self.event_filter, self.place, _READ_BYTES)
                self.place = batch.through
                piece = (reset_block(LOST) if batch.has_gap else b"") + self._merge(batch)
            elif self._transient and self._transient[0][0] <= self.place:
                piece = self._merge(LogSlice(self.place))
            elif self._is_keep_alive_due:
                piece = self._keep_alive()
            else:
                await self._wait()
            if piece:
                self._is_keep_alive_due = False
                return piece
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
            return batch.joined
        parts = [self._dropped_block()]
        for seq, text in batch.parts:
            while self._transient and self._transient[0][0] < seq:
                parts.append(self._transient.popleft()[1])
            parts.append(text)
        while self._transient and self._transient[0][0] <= batch.through:
            parts.append(self._transient.popleft()[1])
        return b"".join(parts)

    def _dropped_block(self) -> bytes:
        count, self._dropped = self._dropped, 0
        return b'event: dropped\ndata: {"count":%d}\n\n' % count if count else b""

    def _keep_alive(self) -> bytes:
        head = self._feed.head
        # All earlier events were scanned, so a client that resumes need not scan them again.
        resume_id = head.event_id if head.seq == self.place else ""
        return b": still here\n" + id_line(resume_id) + b"\n"


def id_line(event_id: str) -> bytes:
    """Return the line with the id to resume after."""
    return f"id: {event_id}\n".encode() if event_id and event_id.isprintable() else b""


def reset_block(reason: str) -> bytes:
    """Return the event that says that earlier events may be missing, and why."""
    return b"event: reset\ndata: %b\n\n" % orjson.dumps({"reason": reason})
