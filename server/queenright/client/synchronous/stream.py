"""Following a service's events, over every break of the connection."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

import httpx

from queenright.api.events import Event
from queenright.client.answers import parsed, unanswered
from queenright.client.errors import RequestRefusedError, UnreachableError
from queenright.client.notices import Notice
from queenright.client.sse import Message, Reader
from queenright.client.synchronous.transport import Transport
from queenright.instrumentation.errors import QueenrightError

_IDLE: Final = 45.0
"""Seconds without a byte after which a connection is taken for broken: a comment comes every 15."""
_RETRY: Final = 2.0
_LONGEST: Final = 30.0
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Refusals that may end by themselves."""


class EventStream:
    """
    Events, as they happen; to be iterated over, once.

    When the connection breaks it is made again, and the events go on behind the last one that came: none is
    missing and none comes twice. Deltas are the exception: they are in no log, so those of the time between
    are gone. Should the service not know that last event any more, a notice says so (``reset``).

    The first connection is made when the first event is asked for. If that fails it is an error, unless
    ``wait`` is set; later ones are tried again until one is made.

    Args:
        ask: What asks the service.
        path: Which stream.
        asked: What is asked of it.
        last_event_id: Begin behind this event; with what comes from now on, without.
        wait: Whether a service that is not there yet is waited for, too.
        told: Is called with what the stream tells of itself.
        sleep: Waits, seconds.
        spread: Returns a number of 0 to 1: by how much a wait is shorter, so that not all come back at once.

    Attributes:
        last_event_id: How far it has got: where another stream can go on. Nothing that was handed out, and is
            in the log, comes again there.
        connected: Whether events come.
    """

    def __init__(
        self,
        ask: Transport,
        path: str,
        asked: dict[str, Any],
        *,
        last_event_id: str | None,
        wait: bool,
        told: Callable[[Notice], None],
        sleep: Callable[[float], object],
        spread: Callable[[], float],
    ) -> None:
        self.last_event_id = last_event_id
        self.connected = False
        self._ask = ask
        self._path = path
        self._asked = asked
        self._wait = wait
        self._told = told
        self._sleep = sleep
        self._spread = spread
        self._retry = _RETRY
        self._failed = 0
        self._closed = False
        self._seen = last_event_id
        self._ready: deque[tuple[Event, str | None]] = deque()
        self._reader = Reader()
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while not self._ready:
            if self._closed:
                raise StopIteration
            self._read(self._pieces or self._connect())
        event, place = self._ready.popleft()
        self.last_event_id = place or self.last_event_id
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it: no more events come."""
        self._closed = True
        self._ready.clear()
        self._disconnect()

    def _connect(self) -> Iterator[bytes]:
        """Return what comes in; waits until somebody answers."""
        while True:
            headers = {} if self._seen is None else {"Last-Event-ID": self._seen}
            try:
                response = self._ask.open(self._path, headers=headers, idle=_IDLE, **self._asked)
            except (RequestRefusedError, UnreachableError) as error:
                if isinstance(error, RequestRefusedError) and error.status not in _LATER:
                    raise
                if not self._wait:
                    raise
                self._told(Notice("lost", error=error))
                self._pause()
                continue
            self._response, self._reader, self._wait = response, Reader(), True
            self._pieces = response.iter_bytes()
            self.connected = True
            self._told(Notice("connected"))
            return self._pieces

    def _read(self, pieces: Iterator[bytes]) -> None:
        """Take what comes in next; when nothing comes any more, wait, and connect at the next call."""
        lost: QueenrightError
        try:
            for piece in pieces:
                for message in self._reader.read(piece):
                    self._take(message)
                self._failed = 0
                self._retry = self._reader.retry or self._retry
                self._seen = self._reader.place or self._seen
                if not self._ready:
                    self.last_event_id = self._seen
                return
            lost = UnreachableError(f"The stream of events from {self._ask.url} has ended.")
        except (httpx.HTTPError, httpx.StreamError) as error:
            lost = unanswered(self._ask.url, error)
        except (ValueError, UnreachableError) as error:
            self.close()
            raise UnreachableError(
                f"What {self._ask.url} sends is no stream of our events: {error}"
            ) from error
        self._disconnect()
        if not self._closed:
            self._told(Notice("lost", error=lost))
            self._pause()

    def _take(self, message: Message) -> None:
        if message.event in ("dropped", "reset"):
            kind: Any = message.event
            said = json.loads(message.data)
            self._told(Notice(kind, data=said if isinstance(said, dict) else {}))
        else:
            self._ready.append((parsed(Event, json.loads(message.data)), message.id))

    def _pause(self) -> None:
        """Wait before the next try: longer after each that failed."""
        wait = min(_LONGEST, self._retry * 2**self._failed)
        self._failed = min(self._failed + 1, 10)
        self._sleep(wait * (1 - self._spread() / 2))

    def _disconnect(self) -> None:
        response, self._response, self._pieces = self._response, None, None
        self.connected = False
        if response is not None:
            response.close()
