"""
Forward received telemetry to another OTLP endpoint.

Requests are queued unchanged and sent in the background, so the agent never waits for the other endpoint. The
queue is bounded in bytes; when it is full, the oldest request is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import httpx
from prometheus_client import Counter

from queenright.instrumentation.certificates import certificates
from queenright.instrumentation.identity import new_id
from queenright.server.access.tokens import TOKEN_PREFIX
from queenright.server.http.hop_by_hop import Header, forward_headers

_log = logging.getLogger(__name__)

RETRYABLE_STATUSES: Final = frozenset({429, 502, 503, 504})
"""The statuses that OTLP/HTTP defines as retryable. Other statuses are final."""

VIA_HEADER: Final = b"x-queenright-via"
"""Header with the receivers that a request has passed, which prevents forwarding loops."""

_CLIENT_HEADERS: Final = frozenset({b"content-length", b"expect", b"host", VIA_HEADER})
"""Headers that the HTTP client sets itself."""

_MAX_RESPONSE_BYTES: Final = 64 << 10
_MAX_CONCURRENT: Final = 4
"""Maximum number of concurrent requests."""
_TIMEOUT_SECONDS: Final = 10.0
"""Timeout of one attempt."""


@dataclass(frozen=True, slots=True)
class _Request:
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    signal: str

    @property
    def size(self) -> int:
        return len(self.body) + 1_024


class Forwarder:
    """
    Forwards requests to another OTLP endpoint.

    Args:
        url: The endpoint without the signal's path, such as ``https://collector:4318``. A user and password
            in it become the ``Authorization`` header if the agent sent none, and are never printed.
        max_bytes: Maximum bytes of queued requests.
        dropped_counter: The counter of dropped requests by signal (``queenright_telemetry_dropped_total``).
        first_delay: Seconds before the second attempt. They double for each later one, up to ``max_delay``.
        give_up_after: Seconds after which a failing request is dropped.

    Raises:
        ValueError: The URL is not an absolute http or https URL.
    """

    def __init__(
        self,
        url: str,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        dropped_counter: Counter,
        first_delay: float = 1.0,
        max_delay: float = 30.0,
        give_up_after: float = 3600.0,
    ) -> None:
        try:
            parsed_url = httpx.URL(url)
        except httpx.InvalidURL:
            parsed_url = httpx.URL()
        if parsed_url.scheme not in ("http", "https") or not parsed_url.host:
            # Omit the URL and the parser's error, because both could contain the password.
            raise ValueError(
                "the forwarding URL must be an http or https URL such as https://collector.example.com:4318"
            ) from None
        self._auth = (
            httpx.BasicAuth(parsed_url.username, parsed_url.password) if parsed_url.userinfo else None
        )
        public_url = parsed_url.copy_with(userinfo=b"", fragment=None)
        self._query = public_url.query
        self._base = str(public_url.copy_with(query=None)).rstrip("/")
        self._max_bytes = max_bytes
        self._first_delay = first_delay
        self._max_delay = max_delay
        self._give_up_after = give_up_after
        self._via = new_id().encode()
        self._queue: deque[_Request] = deque()
        self._bytes = 0
        self._has_requests = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._active_count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._client: httpx.AsyncClient | None = None
        self._is_closed = False
        self._is_failing = False
        self.sent_requests = 0
        self.dropped_requests = 0
        self._dropped_counter = dropped_counter

    def __repr__(self) -> str:
        return f"Forwarder({self._base!r})"

    @property
    def endpoint(self) -> str:
        """The target URL, without credentials and query."""
        return self._base

    @property
    def pending(self) -> int:
        """The number of requests that are queued or being sent."""
        return len(self._queue) + self._active_count

    async def start(self) -> None:
        """Start sending."""
        self._client = httpx.AsyncClient(
            timeout=_TIMEOUT_SECONDS,
            follow_redirects=False,
            verify=certificates(self._base),
        )
        self._tasks = [
            asyncio.create_task(self._send_all(), name=f"forward-{n}") for n in range(_MAX_CONCURRENT)
        ]

    async def stop(self, *, flush_seconds: float = 2.0) -> None:
        """Send queued requests for at most ``flush_seconds``. Count the remaining ones as dropped."""
        self._is_closed = True
        if self._tasks:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_idle.wait(), flush_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        while self._queue:
            self._drop(self._queue.popleft())
        if self._client is not None:
            await self._client.aclose()

    def offer(self, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """
        Queue a request. A Queenright token is removed, because it is only for this service.

        Never blocks or raises; call it from the event loop's thread.
        """
        signal = path.rpartition("/")[2]
        via = b", ".join(value for name, value in headers if name.lower() == VIA_HEADER)
        if self._via in via:
            return
        forwarded_headers = [
            header
            for header in forward_headers(headers, without=_CLIENT_HEADERS)
            if not _is_own_token(header)
        ]
        forwarded_headers.append((VIA_HEADER, b", ".join(filter(None, (via, self._via)))))
        request = _Request(path, forwarded_headers, body, signal)
        if self._is_closed or request.size > self._max_bytes:
            self._count_drop(signal)
            return
        self._queue.append(request)
        self._bytes += request.size
        while self._bytes > self._max_bytes and self._queue:
            self._drop(self._queue.popleft())
        self._is_idle.clear()
        self._has_requests.set()

    def _drop(self, request: _Request) -> None:
        self._bytes -= request.size
        self._count_drop(request.signal)

    def _count_drop(self, signal: str) -> None:
        self.dropped_requests += 1
        self._dropped_counter.labels(signal).inc()

    async def _send_all(self) -> None:
        while True:
            while not self._queue:
                self._has_requests.clear()
                if not self._active_count:
                    self._is_idle.set()
                await self._has_requests.wait()
            request = self._queue.popleft()
            self._active_count += 1
            is_delivered = False
            try:
                is_delivered = await self._send(request)
            except Exception:
                _log.exception("cannot forward a request to %s", self._base)
            finally:
                self._active_count -= 1
                if is_delivered:
                    self.sent_requests += 1
                    self._bytes -= request.size
                else:
                    self._drop(request)

    async def _send(self, request: _Request) -> bool:
        """Send a request with retries, and return whether it was delivered."""
        deadline = time.monotonic() + self._give_up_after
        delay = self._first_delay
        while True:
            reason, can_retry, wait_seconds = await self._send_once(request)
            if not reason:
                self._log_state_change(None)
                return True
            self._log_state_change(reason)
            # Without jitter, all receivers would retry at the same moment.
            wait_seconds = max(wait_seconds, delay * random.uniform(0.5, 1.0))
            if not can_retry or time.monotonic() + wait_seconds > deadline:
                return False
            await asyncio.sleep(wait_seconds)
            delay = min(delay * 2, self._max_delay)

    async def _send_once(self, request: _Request) -> tuple[str, bool, float]:
        """Send a request once. Return the failure or "", whether to retry, and the seconds to wait."""
        if self._client is None:
            raise RuntimeError("the forwarder is not started; call start() first")
        url = f"{self._base}{request.path}"
        if self._query:
            url = f"{url}?{self._query.decode('ascii', 'replace')}"
        outgoing = httpx.Request("POST", url, headers=request.headers, content=request.body)
        auth = self._auth if "authorization" not in outgoing.headers else None
        try:
            response = await self._client.send(outgoing, auth=auth, stream=True)
            await _drain(response)
        except httpx.TransportError as error:
            return type(error).__name__, True, 0.0
        if response.is_success:
            return "", False, 0.0
        return (
            f"status {response.status_code}",
            response.status_code in RETRYABLE_STATUSES,
            _read_retry_after(response),
        )

    def _log_state_change(self, reason: str | None) -> None:
        """Log when the endpoint starts to fail and when it recovers, but not each request."""
        if reason is not None and not self._is_failing:
            _log.warning("cannot forward telemetry to %s: %s", self._base, reason)
        elif reason is None and self._is_failing:
            _log.info("forwarding telemetry to %s again", self._base)
        self._is_failing = reason is not None


async def _drain(response: httpx.Response) -> None:
    """Read a response so that its connection can be reused. Close the connection if it is too long."""
    byte_count = 0
    try:
        async for chunk in response.aiter_raw():
            byte_count += len(chunk)
            if byte_count > _MAX_RESPONSE_BYTES:
                break
    finally:
        await response.aclose()


def _read_retry_after(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), 300.0) if text.isdecimal() and len(text) < 6 else 0.0


@contextlib.asynccontextmanager
async def run_forwarder(
    url: str | None, get_counter: Callable[[], Counter]
) -> AsyncIterator[Forwarder | None]:
    """
    Run a forwarder until the block ends.

    Args:
        url: The endpoint; None for no forwarder.
        get_counter: Returns the counter of dropped requests.
    """
    if url is None:
        yield None
        return
    forwarder = Forwarder(url, dropped_counter=get_counter())
    await forwarder.start()
    try:
        yield forwarder
    finally:
        await forwarder.stop()


def _is_own_token(header: Header) -> bool:
    name, value = header
    scheme, _, credentials = value.strip().partition(b" ")
    is_bearer = name == b"authorization" and scheme.lower() == b"bearer"
    return is_bearer and credentials.strip().startswith(TOKEN_PREFIX.encode())
