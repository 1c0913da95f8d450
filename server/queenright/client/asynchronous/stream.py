"""The event stream, which reconnects after every break."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import httpx

from queenright.api.events import Event
from queenright.client.address import remove_credentials
from queenright.client.asynchronous.transport import AsyncTransport
from queenright.client.errors import RequestRejectedError, UnreachableError
from queenright.client.notices import Notice
from queenright.client.responses import make_unreachable_error, parse_model
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.http_statuses import TRANSIENT_STATUSES

_IDLE_SECONDS: Final = 45.0
"""Seconds without a byte after which a connection counts as broken; the service sends a comment every 15."""
_RETRY_SECONDS: Final = 2.0
_MAX_RETRY_SECONDS: Final = 30.0


class AsyncEventStream:
    """
    An iterator over events as they happen. It can be iterated once.

    After a break it reconnects and continues after the last event, without gaps or duplicates. Deltas are the
    exception: they are not in the log, so those sent during the break are lost. If the service does not know
    the last event, it sends a notice (``reset``).

    The first connection is made with the first event. It raises on failure, unless ``wait`` is set; later
    connections are retried until one succeeds.

    Args:
        transport: Sends requests to the service.
        path: Path of the stream.
        params: Query parameters.
        last_event_id: Start after this event. Default: now.
        wait: Also wait for a service that does not respond yet.
        on_notice: Called with notices about the stream itself.
        sleep: Waits for a number of seconds.
        jitter: Returns a number between 0 and 1 that shortens a wait, so that clients do not all reconnect at
            once.

    Attributes:
        last_event_id: The last event that was returned; another stream can continue after it.
        connected: Whether the stream is connected.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        path: str,
        params: dict[str, Any],
        *,
        last_event_id: str | None,
        wait: bool,
        on_notice: Callable[[Notice], None],
        sleep: Callable[[float], Awaitable[object]],
        jitter: Callable[[], float],
    ) -> None:
        self.last_event_id = last_event_id
        self.connected = False
        self._transport = transport
        self._path = path
        self._params = params
        self._wait = wait
        self._on_notice = on_notice
        self._sleep = sleep
        self._jitter = jitter
        self._retry_seconds = _RETRY_SECONDS
        self._attempts = 0
        self._is_closed = False
        self._resume_id = last_event_id
        self._events: deque[tuple[Event, str | None]] = deque()
        self._parser = SseParser()
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._is_closed:
                raise StopAsyncIteration
            await self._read_chunk(self._chunks or await self._connect())
        event, id_ = self._events.popleft()
        self.last_event_id = id_ or self.last_event_id
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the stream."""
        self._is_closed = True
        self._events.clear()
        await self._disconnect()

    async def _connect(self) -> AsyncIterator[bytes]:
        """Connect, retrying until the service answers, and return the response's chunks."""
        while True:
            headers = {} if self._resume_id is None else {"Last-Event-ID": self._resume_id}
            try:
                response = await self._transport.open_stream(
                    self._path, headers=headers, idle=_IDLE_SECONDS, **self._params
                )
            except (RequestRejectedError, UnreachableError) as error:
                if isinstance(error, RequestRejectedError) and error.status not in TRANSIENT_STATUSES:
                    raise
                if not self._wait:
                    raise
                self._on_notice(Notice("lost", error=error))
                await self._wait_before_retry()
                continue
            self._response, self._parser, self._wait = response, SseParser(), True
            self._chunks = response.aiter_bytes()
            self.connected = True
            self._on_notice(Notice("connected"))
            return self._chunks

    async def _read_chunk(self, chunks: AsyncIterator[bytes]) -> None:
        """Read one chunk; after a break, wait, and let the next call reconnect."""
        connection_error: QueenrightError
        try:
            async for chunk in chunks:
                for message in self._parser.feed(chunk):
                    self._handle_message(message)
                self._attempts = 0
                self._retry_seconds = self._parser.retry or self._retry_seconds
                self._resume_id = self._parser.last_id or self._resume_id
                if not self._events:
                    self.last_event_id = self._resume_id
                return
            connection_error = UnreachableError(
                f"The event stream from {remove_credentials(self._transport.url)} has ended."
            )
        except (httpx.HTTPError, httpx.StreamError) as error:
            connection_error = make_unreachable_error(self._transport.url, error)
        except (ValueError, UnreachableError) as error:
            await self.aclose()
            raise UnreachableError(
                f"{remove_credentials(self._transport.url)} does not send a Queenright event stream: {error}"
            ) from error
        await self._disconnect()
        if not self._is_closed:
            self._on_notice(Notice("lost", error=connection_error))
            await self._wait_before_retry()

    def _handle_message(self, message: SseMessage) -> None:
        if message.event in ("dropped", "reset"):
            kind: Any = message.event
            data = json.loads(message.data)
            self._on_notice(Notice(kind, data=data if isinstance(data, dict) else {}))
        elif message.event != "alive":
            self._events.append((parse_model(Event, json.loads(message.data)), message.id))

    async def _wait_before_retry(self) -> None:
        """Wait before the next attempt, longer after each failure."""
        wait = min(_MAX_RETRY_SECONDS, self._retry_seconds * 2**self._attempts)
        self._attempts = min(self._attempts + 1, 10)
        await self._sleep(wait * (1 - self._jitter() / 2))

    async def _disconnect(self) -> None:
        response, self._response, self._chunks = self._response, None, None
        self.connected = False
        if response is not None:
            await response.aclose()


_MAX_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of a message; the service's are far smaller."""


@dataclass(frozen=True, slots=True)
class SseMessage:
    """
    A message of an event stream.

    Attributes:
        event: Event type; ``message`` by default.
        data: Text of the message.
        id: Id of the message; None if it has none.
    """

    event: str
    data: str
    id: str | None = None


class SseParser:
    """
    An incremental parser for one stream.

    Attributes:
        retry: Seconds to wait before reconnecting, if the stream has sent a value.
        last_id: The last id that arrived, to reconnect with. None before the first.
    """

    def __init__(self) -> None:
        self.retry: float | None = None
        self.last_id: str | None = None
        self._buffer = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []
        self._size = 0
        self._has_started = False

    def feed(self, chunk: bytes) -> Iterator[SseMessage]:
        """
        Parse a chunk, and yield the messages that it completes.

        Raises:
            ValueError: A message is too long or not UTF-8.
        """
        text = self._buffer + chunk
        if not self._has_started:
            if len(text) < 3 and b"\xef\xbb\xbf".startswith(text):
                self._buffer = text
                return
            text, self._has_started = text.removeprefix(b"\xef\xbb\xbf"), True
        # CR LF may be split between two chunks.
        pending_cr = b""
        if text.endswith(b"\r"):
            text, pending_cr = text[:-1], b"\r"
        *lines, incomplete_line = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._buffer = incomplete_line + pending_cr
        for line in lines:
            self._size += len(line)
            if (message := self._handle_line(line.decode())) is not None:
                yield message
        if self._size + len(self._buffer) > _MAX_BYTES:
            raise ValueError(f"a message of the stream is longer than {_MAX_BYTES} bytes")

    def _handle_line(self, line: str) -> SseMessage | None:
        if not line:
            return self._complete_message()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value) / 1000
        elif name == "event" or (name == "id" and "\0" not in value):
            self._fields[name] = value
        return None

    def _complete_message(self) -> SseMessage | None:
        fields, data = self._fields, self._data
        self._fields, self._data, self._size = {}, [], 0
        self.last_id = fields.get("id", self.last_id)
        if not data:
            return None
        return SseMessage(fields.get("event") or "message", "\n".join(data), fields.get("id"))
