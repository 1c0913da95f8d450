"""
The OTLP/HTTP receiver: an ASGI app for ``/v1/traces``, ``/v1/logs`` and ``/v1/metrics``.

A response of 200 means that the events are durable, because it is sent after the ingest function has
returned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope, Send

from queenright.alerting.lifespan import complete_lifespan
from queenright.instrumentation import names
from queenright.instrumentation.families import counter
from queenright.runtime.events import AgentEvent, Clock
from queenright.server.otlp.decode import count_metrics_in_steps, decode_logs_in_steps, decode_spans_in_steps
from queenright.server.otlp.encoding import (
    MediaType,
    check_json,
    decompress_chunks,
    parse_message,
    render_message,
    render_status,
)
from queenright.server.otlp.errors import (
    DEADLINE_EXCEEDED,
    NOT_FOUND,
    UNIMPLEMENTED,
    OverloadedError,
    RejectedRequestError,
    make_malformed_error,
    make_too_large_error,
    make_unavailable_error,
)
from queenright.server.otlp.forward import Forwarder
from queenright.server.otlp.loop_share import CapacityLimiter, EventLoopShare
from queenright.server.otlp.protobuf_split import MAX_GROUPS, MAX_PIECE, split_request
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.batch import MAX_EVENTS, Batch
from queenright.server.telemetry.duplicates import StillStoringError
from queenright.server.telemetry.intake import GRPC_PATH, NOTICE_INTERVAL_SECONDS, Intake
from queenright.server.telemetry.process import Process

T = TypeVar("T")

_log = logging.getLogger(__name__)

Ingest = Callable[[list[AgentEvent]], Awaitable[None]]
Publish = Callable[[str, bytes], Awaitable[None]]
RecordProcessAlive = Callable[[Mapping[str, float | None]], None]

MAX_BODY: Final = 16 * 1024 * 1024
MAX_INFLATED: Final = 64 * 1024 * 1024
MAX_IN_FLIGHT: Final = 128 * 1024 * 1024
"""Maximum bytes of bodies in memory at one time, compressed and decompressed."""
BODY_TIMEOUT_SECONDS: Final = 30.0
MAX_INLINE_JSON: Final = 8 * 1024
"""Maximum bytes of JSON to parse on the event loop. Parsing takes 1 ms per kilobyte."""
MAX_STORING: Final = 2_048
"""Maximum events that are stored at one time. The monitor processes them without yielding the event loop."""


@dataclass(frozen=True, slots=True)
class _Signal:
    request: Callable[[], Message]
    response: Callable[[], Message]
    rejected: str
    decode: Callable[[Any, Assembler, float, Batch], Iterator[None]]


_END_CHECK_SECONDS: Final = 5.0
"""Seconds between checks for runs that have ended without a record."""
_SIGNALS: Final = {
    "/v1/traces": _Signal(
        ExportTraceServiceRequest, ExportTraceServiceResponse, "rejected_spans", decode_spans_in_steps
    ),
    "/v1/logs": _Signal(
        ExportLogsServiceRequest, ExportLogsServiceResponse, "rejected_log_records", decode_logs_in_steps
    ),
    # Metrics are accepted, so that exporters do not fail, and forwarded, but not read.
    "/v1/metrics": _Signal(
        ExportMetricsServiceRequest,
        ExportMetricsServiceResponse,
        "rejected_data_points",
        count_metrics_in_steps,
    ),
}


@dataclass(slots=True)
class Counts:
    """Totals of requests, spans and records since the start."""

    requests: int = 0
    refused: int = 0
    accepted: int = 0
    ignored: int = 0
    rejected: int = 0
    events: int = 0


class _ClientDisconnectedError(Exception):
    """Raised when the client disconnects before its request is complete."""


class OtlpReceiver:
    """
    The OTLP/HTTP receiver, an ASGI app.

    Args:
        ingest: Stores the events of one request, ordered by time, and returns once they are durable. It may
            raise `OverloadedError`; this and any other exception is answered with 503 and ``Retry-After``, so
            that the client retries.
        registry: The registry of ``queenright_ingest_spans_total``.
        assembler: The assembler, shared with hooks; a new one by default.
        intake: The statistics of senders, shared with hooks; new ones by default.
        record_process_alive: Called with the processes that sent something: a mapping from incarnation id to
            the interval in seconds at which the process reports open work, or None if it does not.
        forwarder: Forwards every received request. The caller starts and stops it.
        publish: Called with the path and protobuf of each piece of a request, instead of storing its events:
            in a cluster, the owner stores them (`store_pieces`). Raises `RejectedRequestError`.
        max_body: Maximum length of a body as sent, in bytes.
        max_inflated: Maximum length of a decompressed body, in bytes.
        max_in_flight: Maximum bytes of bodies in memory at one time, compressed and decompressed. Beyond it,
            requests get status 503.
        body_timeout: Maximum seconds until a body has arrived.
        clock: Seconds since the epoch.
        share: Limits the share of the event loop's time that decoding takes.
    """

    def __init__(
        self,
        ingest: Ingest,
        *,
        registry: CollectorRegistry,
        assembler: Assembler | None = None,
        intake: Intake | None = None,
        record_process_alive: RecordProcessAlive = lambda intervals: None,
        forwarder: Forwarder | None = None,
        publish: Publish | None = None,
        max_body: int = MAX_BODY,
        max_inflated: int = MAX_INFLATED,
        max_in_flight: int = MAX_IN_FLIGHT,
        body_timeout: float = BODY_TIMEOUT_SECONDS,
        clock: Clock = time.time,
        share: EventLoopShare | None = None,
    ) -> None:
        self.counts = Counts()
        self._record_process_alive = record_process_alive
        self._intake = intake or Intake(registry)
        self._ingest = ingest
        self._forwarder = forwarder
        self._publish = publish
        self._max_body = max_body
        self._max_inflated = max_inflated
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._share = share or EventLoopShare()
        self._storage_limiter = CapacityLimiter(MAX_STORING)
        # A single thread, so that requests use at most half of the GIL, however many there are.
        self._executor = ThreadPoolExecutor(1, "otlp")
        self._body_timeout = body_timeout
        self._clock = clock
        self._assembler = assembler or Assembler()
        self._grpc_logged_at = -NOTICE_INTERVAL_SECONDS
        spans = counter(names.INGEST_SPANS, registry)
        self._accepted, self._ignored, self._rejected = (
            spans.labels(outcome) for outcome in ("accepted", "ignored", "rejected")
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve ASGI's HTTP and lifespan scopes."""
        if scope["type"] == "http":
            await self._handle_http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await complete_lifespan(receive, send)
        else:
            raise ValueError(f"the OTLP receiver does not support {scope['type']}")

    def count_grpc_refusal(self, address: str, reason: str) -> None:
        """Count the connection of a gRPC client, and log it at most once an hour."""
        now = self._clock()
        self.counts.requests += 1
        self.counts.refused += 1
        self._intake.add_refusal(GRPC_PATH, 505, reason, now)
        if now - self._grpc_logged_at >= NOTICE_INTERVAL_SECONDS:
            self._grpc_logged_at = now
            _log.warning("A gRPC client at %s was refused: %s.", address, reason)

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        self.counts.requests += 1
        try:
            status, extra_headers, body, media_type = await self._respond(
                scope, headers, content_type, receive
            )
        except RejectedRequestError as error:
            self.counts.refused += 1
            self._intake.add_refusal(scope["path"], error.status, str(error), self._clock())
            try:
                media_type = MediaType.from_header(content_type)
            except RejectedRequestError:
                media_type = MediaType.JSON
            status, extra_headers = error.status, error.headers
            body = render_status(error.code, str(error), media_type)
        except _ClientDisconnectedError:
            return
        start_headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", str(len(body)).encode()),
            *extra_headers,
        ]
        await send({"type": "http.response.start", "status": status, "headers": start_headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _respond(
        self, scope: Scope, headers: dict[bytes, bytes], content_type: str, receive: Receive
    ) -> tuple[int, tuple[tuple[bytes, bytes], ...], bytes, MediaType]:
        path: str = scope["path"]
        signal = _SIGNALS.get(path)
        if signal is None:
            raise RejectedRequestError(
                404, NOT_FOUND, f"unknown path {path[:100]!r}; use {', '.join(_SIGNALS)}"
            )
        if scope["method"] != "POST":
            raise RejectedRequestError(
                405, UNIMPLEMENTED, f"{path} accepts only POST", ((b"allow", b"POST"),)
            )
        media_type = MediaType.from_header(content_type)
        # A declared length is checked, but reserves no memory.
        held_bytes = _HeldBytes(self, self._read_declared_length(headers))
        try:
            sent_body = await self._read_body(receive, held_bytes)
            if self._forwarder is not None:
                # Forward first, so that requests that cannot be read or stored still reach the other
                # endpoint.
                self._forwarder.offer(path, scope["headers"], sent_body)
            encoding = headers.get(b"content-encoding", b"").decode("latin-1")
            batch = Batch()
            for body, piece_type in await self._split_body(
                signal, encoding, media_type, sent_body, held_bytes
            ):
                request = await self._parse(signal, body, piece_type)
                if self._publish is None:
                    await self._store(signal, request, batch)
                else:
                    piece = bytes(body) if piece_type is MediaType.PROTOBUF else request.SerializeToString()
                    await self._publish(path, piece)
        finally:
            held_bytes.release()
        return 200, (), render_message(_build_response(signal, batch), media_type), media_type

    def _read_declared_length(self, headers: dict[bytes, bytes]) -> int | None:
        text = headers.get(b"content-length")
        if text is None:
            return None
        if not text.isdigit() or len(text) > 18:
            raise make_malformed_error("Content-Length must be a number")
        length = int(text)
        if length > self._max_body:
            raise make_too_large_error("the body", self._max_body)
        return length

    async def _read_body(self, receive: Receive, held_bytes: _HeldBytes) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientDisconnectedError
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._max_body:
                        raise make_too_large_error("the body", self._max_body)
                    held_bytes.add(len(part))
                    parts.append(part)
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            reason = f"the body did not arrive within {self._body_timeout:g} s"
            raise RejectedRequestError(408, DEADLINE_EXCEEDED, reason, ((b"connection", b"close"),)) from None

    async def _split_body(
        self, signal: _Signal, encoding: str, media_type: MediaType, sent_body: bytes, held_bytes: _HeldBytes
    ) -> Iterable[tuple[bytes | bytearray, MediaType]]:
        """Decompress a body, and split it if it is large."""
        body: bytes | bytearray = sent_body
        if encoding.strip():
            parts = decompress_chunks(sent_body, encoding, self._max_inflated)
            body = bytearray()
            while chunk := await self._share.run(lambda _: next(parts, b"")):
                held_bytes.add(len(chunk))
                body += chunk
        if media_type is MediaType.JSON:
            if len(body) <= MAX_INLINE_JSON:
                return [(body, media_type)]
            body = await self._run_in_thread(_to_protobuf, body, signal.request)
        if len(body) <= MAX_PIECE:
            return [(body, MediaType.PROTOBUF)]
        pieces = await self._run_in_thread(split_request, body, signal.request)
        return ((piece, MediaType.PROTOBUF) for piece in _pop_each(pieces))

    async def _parse(self, signal: _Signal, body: bytes | bytearray, media_type: MediaType) -> Message:
        return await self._share.run(lambda _: parse_message(body, media_type, signal.request))

    async def store_pieces(self, path: str, pieces: Sequence[bytes], ingest: Ingest) -> None:
        """
        Store the events of published pieces, in one call of ``ingest``.

        Args:
            path: The path of their requests.
            pieces: The pieces, oldest first.
            ingest: Stores the events, and returns once they are durable. Also called without events.

        Raises:
            Exception: Any exception of ``ingest``. No events of these pieces are stored.
        """
        signal = _SIGNALS[path]
        batch = Batch()
        try:
            for piece in pieces:
                request = await self._parse(signal, piece, MediaType.PROTOBUF)
                self._record_metrics_source(request)
                steps = signal.decode(request, self._assembler, self._clock(), batch)
                while await self._share.run(partial(_run_until, steps)):
                    pass
                # A span that is in two pieces is rejected the second time.
                self._assembler.duplicates.begin_storing(batch.identities)
            batch.finish()
            await ingest(batch.events)
            self._assembler.duplicates.finish_storing(batch.identities, is_stored=True)
            self._count_batch(signal, batch)
            batch.clear()
        finally:
            self._assembler.duplicates.finish_storing(batch.identities, is_stored=False)
            batch.undo()

    async def end_runs_periodically(self) -> None:
        """End finished runs periodically, until cancelled."""
        while True:
            await asyncio.sleep(_END_CHECK_SECONDS)
            try:
                await self.end_finished_runs()
            except Exception:
                _log.exception("cannot end finished runs")

    async def end_finished_runs(self) -> None:
        """End the runs of agents that have ended without a record, if no more records arrived in time."""
        try:
            await self._store(_SIGNALS["/v1/traces"], ExportTraceServiceRequest(), Batch())
        except RejectedRequestError:
            _log.warning("cannot end finished runs now; retrying")

    async def _run_in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    async def _store(self, signal: _Signal, request: Message, batch: Batch) -> None:
        """Decode a message, and store its events in groups of about ``MAX_EVENTS``."""
        self._record_metrics_source(request)
        steps = signal.decode(request, self._assembler, self._clock(), batch)

        def decode(is_time_up: Callable[[], bool]) -> bool:
            events = batch.events
            for _ in steps:  # noqa: SIM110  # `any` makes decoding 2 % slower
                if is_time_up() or len(events) >= MAX_EVENTS:
                    return True
            return False

        has_more = True
        try:
            while has_more:
                has_more = await self._share.run(decode)
                # From here on, retries of these spans must wait.
                self._assembler.duplicates.begin_storing(batch.identities)
                if has_more and len(batch.events) < MAX_EVENTS:
                    continue
                batch.finish()
                await self._ingest_batch(batch)
                self._assembler.duplicates.finish_storing(batch.identities, is_stored=True)
                self._count_batch(signal, batch)
                batch.clear()
        except StillStoringError as error:
            raise make_unavailable_error(str(error), 1) from None
        finally:
            self._assembler.duplicates.finish_storing(batch.identities, is_stored=False)
            batch.undo()

    def _record_metrics_source(self, request: Message) -> None:
        if isinstance(request, ExportMetricsServiceRequest):
            # Metrics arrive at a steady rate, independent of work, which shows that the process is alive.
            groups = request.resource_metrics[:MAX_GROUPS]
            self._record_process_alive(
                {Process.from_resource(group.resource).incarnation_id: None for group in groups}
            )

    async def _ingest_batch(self, batch: Batch) -> None:
        if not batch.events:
            return
        try:
            async with self._storage_limiter.acquire(len(batch.events)):
                await self._ingest(batch.events)
        except OverloadedError as error:
            raise make_unavailable_error(str(error), error.retry_after) from None
        except Exception:
            # The client retries the request, so nothing is lost.
            _log.exception("cannot store %d events received over OTLP", len(batch.events))
            raise make_unavailable_error("the events could not be stored; retry later", 5) from None

    def _count_batch(self, signal: _Signal, batch: Batch) -> None:
        self._record_process_alive(batch.report_intervals)
        for notice in self._intake.add(batch.sources, self._clock()):
            batch.add_reason(notice)
            _log.warning("%s", notice)
        counts = self.counts
        counts.accepted += batch.accepted
        counts.ignored += batch.ignored
        counts.rejected += batch.rejected
        counts.events += len(batch.events)
        if signal.decode is decode_spans_in_steps:
            self._accepted.inc(batch.accepted)
            self._ignored.inc(batch.ignored)
            self._rejected.inc(batch.rejected)


class _HeldBytes:
    """The bytes that one request holds, counted against the limit of all requests."""

    def __init__(self, receiver: OtlpReceiver, declared_length: int | None) -> None:
        self._receiver = receiver
        self._bytes = 0
        self._check(declared_length or 0)

    def add(self, count: int) -> None:
        """
        Hold more bytes.

        Raises:
            RejectedRequestError: All requests together hold too many bytes (503).
        """
        self._check(count)
        self._receiver._in_flight += count
        self._bytes += count

    def release(self) -> None:
        """Release all bytes."""
        self._receiver._in_flight -= self._bytes
        self._bytes = 0

    def _check(self, count: int) -> None:
        if self._receiver._in_flight + count > self._receiver._max_in_flight:
            raise make_unavailable_error("the requests in progress use too much memory; retry later", 2)


def _run_until(steps: Iterator[None], is_time_up: Callable[[], bool]) -> bool:
    """Run steps until they end or their time is used up. Return whether steps may remain."""
    return any(is_time_up() for _ in steps)


def _to_protobuf(body: bytes | bytearray, make: Callable[[], Message]) -> bytes:
    check_json(body)
    return parse_message(body, MediaType.JSON, make).SerializeToString()


def _pop_each(pieces: list[bytes]) -> Iterator[bytes]:
    """Yield each piece, and drop the reference to it to free memory."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def _build_response(signal: _Signal, batch: Batch) -> Message:
    response: Any = signal.response()
    if batch.rejected_total:
        setattr(response.partial_success, signal.rejected, batch.rejected_total)
    if batch.reasons:
        response.partial_success.error_message = "; ".join(batch.reasons)
    message: Message = response
    return message
