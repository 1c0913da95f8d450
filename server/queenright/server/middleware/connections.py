"""
The connections of one port: how many there may be, how long a client may hold one and ask nothing, and how
large the head of a request may be.

Descriptors are the process's: what clients hold, the store, the judge and the outbox cannot open.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from queenright.server.access.addresses import network_of

_log = logging.getLogger(__name__)

ABORT: Final = "queenright.abort"
"""In a request's ``extensions``: a function that breaks off its connection, with what is still to be sent."""

HEADERS_SECONDS: Final = 10.0
BODY_SECONDS: Final = 35.0
"""The OTLP receiver gives a body 30 s, and answers; this is for whoever waits for one without a limit."""
ANSWER_SECONDS: Final = 30.0
"""How long a client may take to receive the end of an answer, and to ask again or let go."""

HEAD_BYTES: Final = 64 * 1_024
"""What the URL and the headers of a request may have; the same of trailers, and of what precedes a chunk."""
URL_BYTES: Final = 16 * 1_024
MOST_HEADERS: Final = 200
PIPELINED: Final = 16
"""How many requests may wait on one connection for the answer to an earlier one."""
DROPPED_BYTES: Final = 1_048_576
"""So much is read of what follows a refused request, so that its client reads the answers before it."""
SLICE_BYTES: Final = 16 * 1_024
"""The parser gets so much at a time: a limit is passed by no more, whatever the size of a read."""
_REFUSALS: Final = {
    400: "Invalid HTTP request received.",
    414: f"The URL is longer than {URL_BYTES} bytes. Send a shorter one.",
    431: f"More than {MOST_HEADERS} headers, or {HEAD_BYTES} bytes of URL and headers. Send fewer or less.",
}

SHARE: Final = 4
"""A port may have one in so many descriptors; half of them all stay for the service itself."""
MOST: Final = 10_000
_SWEEP_SECONDS: Final = 1.0
_LOG_SECONDS: Final = 60.0


def raise_descriptor_limit() -> None:
    """Let this process open as many files and connections as it is allowed to. Once a process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS says "no limit" and then refuses it.
    wanted = 65_536 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _log.warning("the limit of open files stays at %d: %s", soft, error)


def connection_limit() -> int:
    """Return how many connections one port may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(16, min(MOST, soft // SHARE))


class Connections:
    """
    The connections of one port.

    A connection waits while its client has not sent a whole request: it is idle, or its headers or its body
    have not arrived. When a connection comes and the port has all that it may have, the network that holds
    the most gives up the one that has waited longest; if none of that network waits, the new one is refused.

    Args:
        limit: How many there may be at one time.
        clock: Seconds that only rise.
    """

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._open: dict[str, int] = {}
        self._waiting: dict[str, dict[GuardedProtocol, None]] = {}
        self._due: dict[GuardedProtocol, float] = {}
        self._logged = -_LOG_SECONDS
        self.refused = 0
        self.expired = 0

    def __len__(self) -> int:
        return sum(self._open.values())

    def opened(self, connection: GuardedProtocol) -> bool:
        """Take a new connection in; False if there is no room for it."""
        has_room = len(self) < self._limit or self._make_room()
        if has_room:
            network = connection.network
            self._open[network] = self._open.get(network, 0) + 1
            self.wait(connection, HEADERS_SECONDS)
        return has_room

    def closed(self, connection: GuardedProtocol) -> None:
        """Forget a connection that was taken in."""
        self.serve(connection)
        network = connection.network
        self._open[network] -= 1
        if not self._open[network]:
            del self._open[network]

    def wait(self, connection: GuardedProtocol, seconds: float) -> None:
        """Note that a connection waits for its client from now on, at most so long."""
        self._due[connection] = self._clock() + seconds
        self._waiting.setdefault(connection.network, {}).setdefault(connection)

    def waits(self, connection: GuardedProtocol) -> bool:
        """Return whether a connection waits for its client."""
        return connection in self._due

    def serve(self, connection: GuardedProtocol) -> None:
        """Note that a connection waits for its client no more."""
        self._due.pop(connection, None)
        waiting = self._waiting.get(connection.network)
        if waiting is not None:
            waiting.pop(connection, None)
            if not waiting:
                del self._waiting[connection.network]

    def sweep(self) -> None:
        """Break off what has waited too long."""
        now = self._clock()
        for connection, due in list(self._due.items()):
            if due > now:
                continue
            if connection.flow.read_paused and not connection.transport.is_closing():
                # It is not the client that is slow: nothing is read from it just now.
                self._due[connection] = now + HEADERS_SECONDS
            else:
                self.expired += 1
                connection.abort()

    @contextmanager
    def sweeping(self) -> Iterator[None]:
        """Sweep every second, for as long as the block lasts."""

        async def sweep() -> None:
            while True:
                await asyncio.sleep(_SWEEP_SECONDS)
                self.sweep()

        task = asyncio.create_task(sweep(), name="connections")
        try:
            yield
        finally:
            task.cancel()

    def _make_room(self) -> bool:
        network = max(self._open, key=lambda one: self._open[one])
        oldest = next(iter(self._waiting.get(network, ())), None)
        self.refused += 1
        now = self._clock()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            _log.warning(
                "a port has its %d connections, most from %s, and takes others for those that wait",
                len(self),
                network,
            )
        if oldest is None:
            return False
        oldest.abort()
        return True


class _LimitError(Exception):
    """Raised in the parser's callbacks, to make it stop at once."""


class GuardedProtocol(HttpToolsProtocol):
    """
    uvicorn's HTTP, with limits.

    What a client sends has to arrive in time, heads of requests and pipelines have a largest size, and an app
    can break its connection off.
    """

    network: str = ""
    _taken = False
    _is_refused = False
    _status = 400
    _head_bytes = 0
    _dropped_bytes = 0
    _previous: RequestResponseCycle | None = None

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._all = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, if there is room."""
        super().connection_made(transport)
        self.network = network_of(self.client[0]) if self.client else ""
        self._taken = self._all.opened(self)
        if not self._taken:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._give_back()
        super().connection_lost(exc)
        self._previous = None
        self.pipeline.clear()  # they refer to this connection, and would wait for the garbage collector

    def data_received(self, data: bytes) -> None:
        """Read on; whatever is not the whole of a request's headers is waited for."""
        for start in range(0, len(data), SLICE_BYTES):
            if self.transport.is_closing():
                return
            if self._is_refused:
                self._drop(len(data) - start)
                return
            part = data[start : start + SLICE_BYTES]
            self._head_bytes += len(part)
            super().data_received(part)
            if self._head_bytes > HEAD_BYTES and not self._is_refused:
                self._status = 431
                self.send_400_response("")
        if self._taken and self._is_idle() and not self._all.waits(self):
            self._all.wait(self, HEADERS_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the client sends, and close the connection once earlier requests are answered."""
        self._is_refused = True
        if self.pipeline and self.cycle.more_body:
            # It waits for its turn, and the rest of its body will not come.
            self.pipeline.popleft()
            self.cycle = cast("RequestResponseCycle", self._previous)
        if not self._is_idle() and not self.cycle.more_body:
            self._all.serve(self)
            self.cycle.keep_alive = False
            return
        if self._is_idle() or not self.cycle.response_started:
            text = _REFUSALS[self._status].encode()
            head = (
                b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(STATUS_LINE[self._status] + head % len(text) + text)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the request is answered as any other, and everybody can ask for an upgrade."""

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        super().on_url(url)
        if len(self.url) > URL_BYTES:
            self._status = 414
            raise _LimitError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        if len(self.headers) >= MOST_HEADERS:
            self._status = 431
            raise _LimitError
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, whose size is the app's to limit."""
        self._head_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Begin the request, which does not run before this returns."""
        if len(self.pipeline) >= PIPELINED:
            raise _LimitError
        self._head_bytes = 0
        self._previous = self.cycle
        super().on_headers_complete()
        if self._taken:
            self._all.wait(self, BODY_SECONDS)
        cast("dict[str, Any]", self.scope).setdefault("extensions", {})[ABORT] = self.transport.abort

    def on_message_complete(self) -> None:
        """Wait no more: the request is there."""
        self._head_bytes = 0
        self._all.serve(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to take the end of this one."""
        super().on_response_complete()
        if self._taken and self._is_idle():
            self._all.wait(self, ANSWER_SECONDS)

    def abort(self) -> None:
        """Break the connection off, and give its place to another at once."""
        self._give_back()
        self.transport.abort()

    def _drop(self, size: int) -> None:
        self._dropped_bytes += size
        if self._dropped_bytes > DROPPED_BYTES:
            self.flow.pause_reading()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _give_back(self) -> None:
        if self._taken:
            self._taken = False
            self._all.closed(self)
