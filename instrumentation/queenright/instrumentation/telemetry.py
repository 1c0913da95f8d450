"""Telemetry of a process: its spans and start records, and their destination."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracerProvider,
    ProxyTracerProvider,
    SpanContext,
    set_span_in_context,
)

from queenright.instrumentation import names
from queenright.instrumentation.delivery import Delivery, Sender, SendResult
from queenright.instrumentation.drop_counter import Signal
from queenright.instrumentation.error_guard import suppress_errors
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.otlp import SCOPE, OtlpSender, preload, resolve_endpoint
from queenright.instrumentation.spans import LightTracer

if TYPE_CHECKING:
    from opentelemetry._logs import Logger, LogRecord

Attributes = Mapping[str, str | int | float | bool]


class StartRecord(NamedTuple):
    """A queued start record. It becomes a log record off the agent's thread."""

    name: str
    time_ns: int
    span: SpanContext
    attributes: Attributes

    def to_log_record(self) -> LogRecord:
        """Return the record as an OpenTelemetry event: a log record with an event name."""
        from opentelemetry._logs import LogRecord, SeverityNumber

        return LogRecord(
            timestamp=self.time_ns,
            observed_timestamp=self.time_ns,
            context=set_span_in_context(NonRecordingSpan(self.span)),
            severity_number=SeverityNumber.INFO,
            attributes=dict(self.attributes),
            event_name=self.name,
        )


class ApplicationLogs:
    """Sends start records through the application's own logger provider."""

    destination = "the application's logger provider"

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def send(self, signal: Signal, batch: Sequence[Any]) -> SendResult:
        """Emit the records through the application's logger."""
        for record in batch:
            self._logger.emit(record.to_log_record())
        return SendResult.DELIVERED

    def close(self) -> None:
        """Do nothing: the provider belongs to the application."""


def _connect_nowhere() -> Sender:
    raise AssertionError("muted telemetry has nothing to send")


class Telemetry:
    """
    The destination of spans and start records, for one or more workers.

    The default is OTLP over HTTP to ``OTEL_EXPORTER_OTLP_ENDPOINT`` (default ``http://127.0.0.1:4318``).
    Spans are never sampled here, because the health of a worker is derived from them.

    Args:
        endpoint: The base URL, if not the default.
        tracer_provider: A provider that handles spans instead, including sampling and export.
        connect: Creates a sender to use instead of OTLP; for tests and other transports.
        records: Whether to send start records; turn off if the runtime reports starts itself.
        interval: Seconds between deliveries.
        capacity: Maximum queued spans, and maximum queued records; beyond it the oldest are dropped.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        connect: Callable[[], Sender] | None = None,
        records: bool = True,
        interval: float = 0.5,
        capacity: int = 8192,
    ) -> None:
        # The provider's, so that a record and its span belong to the same service and process.
        resource = getattr(tracer_provider, "resource", None) or Resource.create(
            {
                names.SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or "queenright-agents",
                names.SERVICE_INSTANCE_ID: new_id(),
            }
            | ({} if tracer_provider else {names.DISTRIBUTION_NAME: names.DISTRIBUTION})
        )
        base = resolve_endpoint(endpoint)
        if connect is None:
            preload()
        self._delivery = Delivery(
            connect or (lambda: OtlpSender(base, resource)), interval=interval, capacity=capacity
        )
        is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        self._records = records and not is_disabled
        if tracer_provider is None and is_disabled:
            tracer_provider = NoOpTracerProvider()
        light_tracer = LightTracer(self._delivery.put_span)
        self.tracer: Final = tracer_provider.get_tracer(SCOPE.name) if tracer_provider else light_tracer

    def record(self, name: str, time_ns: int, span: SpanContext, attributes: Attributes) -> None:
        """Queue a start record."""
        if self._records:
            self._delivery.put_record(StartRecord(name, time_ns, span, attributes))

    @classmethod
    def muted(cls) -> Telemetry:
        """Return telemetry that discards everything."""
        return cls(tracer_provider=NoOpTracerProvider(), records=False, connect=_connect_nowhere)

    def flush(self, timeout: float = 2.0) -> bool:
        """Send queued items; return whether all were delivered within ``timeout`` seconds."""
        return self._delivery.flush(timeout)

    def close(self, timeout: float = 2.0) -> None:
        """Send queued items for at most ``timeout`` seconds, then drop the rest."""
        self._delivery.close(timeout)


class _SharedTelemetry:
    """The telemetry that workers of this process share, one per endpoint."""

    def __init__(self) -> None:
        self._by_endpoint: dict[str, Telemetry] = {}
        self._reset_lock()
        after_fork_in_child(self._reset_lock)

    def _reset_lock(self) -> None:
        self._lock = threading.Lock()

    def get(self, endpoint: str | None) -> Telemetry:
        provider = None if endpoint else get_application_provider()
        key = f"application {id(provider)}" if provider is not None else resolve_endpoint(endpoint)
        with self._lock:
            if key not in self._by_endpoint:
                logs = get_application_logs() if provider is not None else None
                self._by_endpoint[key] = Telemetry(
                    endpoint,
                    tracer_provider=provider,
                    connect=(lambda: ApplicationLogs(logs)) if logs is not None else None,
                )
            return self._by_endpoint[key]

    def flush(self, timeout: float) -> bool:
        results = [telemetry.flush(timeout) for telemetry in list(self._by_endpoint.values())]
        return all(results)

    def close(self) -> None:
        for telemetry in list(self._by_endpoint.values()):
            with suppress_errors:
                telemetry.close()


def get_application_provider() -> trace.TracerProvider | None:
    """Return the application's tracer provider, or None if it has not set one up."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, ProxyTracerProvider) else provider


def get_application_logs() -> Logger | None:
    """Return a logger of the application's logger provider, or None if it has not set one up."""
    from opentelemetry._logs import NoOpLoggerProvider, get_logger_provider
    from opentelemetry._logs._internal import ProxyLoggerProvider

    provider = get_logger_provider()
    return (
        None
        if isinstance(provider, ProxyLoggerProvider | NoOpLoggerProvider)
        else provider.get_logger(SCOPE.name)
    )


_shared: Final = _SharedTelemetry()
atexit.register(_shared.close)


def shared_telemetry(endpoint: str | None = None) -> Telemetry:
    """
    Return the telemetry that workers of this process share.

    With an explicit ``endpoint``, Queenright's own tracer is used. Without one, the application's tracer
    and logger providers are used if they are set up, otherwise Queenright's own.
    """
    return _shared.get(endpoint)


def flush(timeout: float = 2.0) -> bool:
    """Send queued items of all workers in this process; return whether all were delivered in time."""
    return _shared.flush(timeout)
