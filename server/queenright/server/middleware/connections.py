"""
Limit the connections of a port: their number, their idle time, and the size of request headers.

All parts of the process share its file descriptors. Without a limit, connections of clients could leave none
for the store, the judge and the outbox.
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

from queenright.server.access.addresses import get_rate_limit_network

_log = logging.getLogger(__name__)

ABORT: Final = "queenright.abort"
"""Key in a scope's ``extensions`` of a function that aborts the connection and drops unsent data."""

HEADERS_TIMEOUT_SECONDS: Final = 10.0
BODY_TIMEOUT_SECONDS: Final = 35.0
"""Longer than the 30 s of the OTLP receiver, so that the receiver can respond first."""
RESPONSE_TIMEOUT_SECONDS: Final = 30.0
"""Time for a client to receive the end of a response and to send another request."""

MAX_HEAD_BYTES: Final = 64 * 1_024
"""Maximum size of the URL and headers of a request, and of trailers and chunk headers."""
MAX_URL_BYTES: Final = 16 * 1_024
MAX_HEADERS: Final = 200
MAX_PIPELINED: Final = 16
"""Maximum number of pipelined requests of a connection that wait for an earlier response."""
MAX_DROPPED_BYTES: Final = 1_048_576
"""Maximum bytes to read after a refused request, so that its client still receives earlier responses."""
SLICE_BYTES: Final = 16 * 1_024
"""Bytes passed to the parser at once. Limits may be exceeded by this much."""
_REFUSAL_TEXTS: Final = {
    400: "Invalid HTTP request received.",
    414: f"The URL is longer than {MAX_URL_BYTES} bytes. Send a shorter one.",
    431: f"The request has more than {MAX_HEADERS} headers, "
    f"or more than {MAX_HEAD_BYTES} bytes of URL and headers. Send fewer.",
}

DESCRIPTOR_SHARE: Final = 4
"""A port may use 1 / ``DESCRIPTOR_SHARE`` of the descriptors, so two ports leave half to the service."""
MAX_CONNECTIONS: Final = 10_000
_SWEEP_SECONDS: Final = 1.0
_LOG_SECONDS: Final = 60.0


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit. Call once per process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS reports an unlimited hard limit, but rejects that value.
    wanted_limit = 65_536 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted_limit:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted_limit, hard))
        except (OSError, ValueError) as error:
            _log.warning("the limit of open files stays at %d: %s", soft, error)


def compute_connection_limit() -> int:
    """Return the maximum number of connections of one port."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(16, min(MAX_CONNECTIONS, soft // DESCRIPTOR_SHARE))


class Connections:
    """
    The connections of one port.

    A connection is waiting while its client has not sent a complete request. If the port is full when a
    connection arrives, the longest-waiting connection of the network with the most connections is aborted.
    If that network has no waiting connection, the new connection is refused.

    Args:
        limit: The maximum number of connections.
        clock: Monotonic seconds.
    """

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._open_counts: dict[str, int] = {}
        self._waiting_by_network: dict[str, dict[GuardedProtocol, None]] = {}
        self._due_at: dict[GuardedProtocol, float] = {}
        self._logged_at = -_LOG_SECONDS

    def __len__(self) -> int:
        return sum(self._open_counts.values())

    def add(self, connection: GuardedProtocol) -> bool:
        """Add a new connection. Return False if there is no room for it."""
        has_room = len(self) < self._limit or self._make_room()
        if has_room:
            network = connection.network
            self._open_counts[network] = self._open_counts.get(network, 0) + 1
            self.wait(connection, HEADERS_TIMEOUT_SECONDS)
        return has_room

    def remove(self, connection: GuardedProtocol) -> None:
        """Remove a connection."""
        self.stop_waiting(connection)
        network = connection.network
        self._open_counts[network] -= 1
        if not self._open_counts[network]:
            del self._open_counts[network]

    def wait(self, connection: GuardedProtocol, seconds: float) -> None:
        """Start a wait of at most ``seconds`` for the client."""
        self._due_at[connection] = self._clock() + seconds
        self._waiting_by_network.setdefault(connection.network, {}).setdefault(connection)

    def is_waiting(self, connection: GuardedProtocol) -> bool:
        """Return whether a connection waits for its client."""
        return connection in self._due_at

    def stop_waiting(self, connection: GuardedProtocol) -> None:
        """End the wait for the client."""
        self._due_at.pop(connection, None)
        waiting_connections = self._waiting_by_network.get(connection.network)
        if waiting_connections is not None:
            waiting_connections.pop(connection, None)
            if not waiting_connections:
                del self._waiting_by_network[connection.network]

    def sweep(self) -> None:
        """Abort the connections that have waited too long."""
        now = self._clock()
        for connection, due_at in list(self._due_at.items()):
            if due_at > now:
                continue
            if connection.flow.read_paused and not connection.transport.is_closing():
                # The client is not slow, because the server has paused reading.
                self._due_at[connection] = now + HEADERS_TIMEOUT_SECONDS
            else:
                connection.abort()

    @contextmanager
    def sweep_periodically(self) -> Iterator[None]:
        """Sweep every second within the block."""

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
        """Abort a waiting connection of the network with the most. Return False if it has none."""
        network = max(self._open_counts, key=lambda name: self._open_counts[name])
        oldest_connection = next(iter(self._waiting_by_network.get(network, ())), None)
        now = self._clock()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            _log.warning(
                "a port has reached its limit of %d connections, most from %s; "
                "aborting idle connections, or refusing new ones if none is idle",
                len(self),
                network,
            )
        if oldest_connection is None:
            return False
        oldest_connection.abort()
        return True


class _LimitError(Exception):
    """Raised in the parser's callbacks to stop the parser immediately."""


class GuardedProtocol(HttpToolsProtocol):
    """
    uvicorn's HTTP protocol with limits on the time and the size of requests, and on pipelining.

    An app can abort its connection through ``ABORT``.
    """

    network: str = ""
    _is_added = False
    _is_refused = False
    _status = 400
    _head_bytes = 0
    _dropped_bytes = 0
    _previous: RequestResponseCycle | None = None

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._connections = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Add the connection and wait for a request, or refuse the connection."""
        super().connection_made(transport)
        self.network = get_rate_limit_network(self.client[0]) if self.client else ""
        self._is_added = self._connections.add(self)
        if not self._is_added:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the limit."""
        self._release()
        super().connection_lost(exc)
        self._previous = None
        self.pipeline.clear()  # breaks reference cycles with this connection

    def data_received(self, data: bytes) -> None:
        """Parse received data, and wait for the rest of incomplete headers."""
        for start in range(0, len(data), SLICE_BYTES):
            if self.transport.is_closing():
                return
            if self._is_refused:
                self._drop(len(data) - start)
                return
            chunk = data[start : start + SLICE_BYTES]
            self._head_bytes += len(chunk)
            super().data_received(chunk)
            if self._head_bytes > MAX_HEAD_BYTES and not self._is_refused:
                self._status = 431
                self.send_400_response("")
        if self._is_added and self._is_idle() and not self._connections.is_waiting(self):
            self._connections.wait(self, HEADERS_TIMEOUT_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """Refuse the request, and close the connection once earlier requests are answered."""
        self._is_refused = True
        if self.pipeline and self.cycle.more_body:
            # The pipelined request waits for its turn, and the rest of its body will not arrive.
            self.pipeline.popleft()
            self.cycle = cast("RequestResponseCycle", self._previous)
        if not self._is_idle() and not self.cycle.more_body:
            self._connections.stop_waiting(self)
            self.cycle.keep_alive = False
            return
        if self._is_idle() or not self.cycle.response_started:
            text = _REFUSAL_TEXTS[self._status].encode()
            head = (
                b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(STATUS_LINE[self._status] + head % len(text) + text)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing. Anyone can request an upgrade, and the request is served like any other."""

    def on_url(self, url: bytes) -> None:
        """Add a part of the URL."""
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._status = 414
            raise _LimitError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header or a trailer."""
        if len(self.headers) >= MAX_HEADERS:
            self._status = 431
            raise _LimitError
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Add a part of the body. The app limits its size."""
        self._head_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Start the request. The app runs after this returns."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _LimitError
        self._head_bytes = 0
        self._previous = self.cycle
        super().on_headers_complete()
        if self._is_added:
            self._connections.wait(self, BODY_TIMEOUT_SECONDS)
        cast("dict[str, Any]", self.scope).setdefault("extensions", {})[ABORT] = self.transport.abort

    def on_message_complete(self) -> None:
        """Stop waiting, because the request is complete."""
        self._head_bytes = 0
        self._connections.stop_waiting(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to receive the end of this response."""
        super().on_response_complete()
        if self._is_added and self._is_idle():
            self._connections.wait(self, RESPONSE_TIMEOUT_SECONDS)

    def abort(self) -> None:
        """Abort the connection, and remove it from the limit immediately."""
        self._release()
        self.transport.abort()

    def _drop(self, size: int) -> None:
        self._dropped_bytes += size
        if self._dropped_bytes > MAX_DROPPED_BYTES:
            self.flow.pause_reading()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _release(self) -> None:
        if self._is_added:
            self._is_added = False
            self._connections.remove(self)
