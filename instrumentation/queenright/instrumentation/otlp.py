"""Send batches of spans and start records over OTLP/HTTP with OpenTelemetry's exporters."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from queenright.instrumentation.delivery import SendResult
from queenright.instrumentation.drop_counter import DROPPED, Signal
from queenright.instrumentation.error_guard import warn_once
from queenright.instrumentation.forks import import_for_requests
from queenright.instrumentation.http_statuses import TRANSIENT_STATUSES
from queenright.instrumentation.redaction import redact

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from requests import Response

SCOPE: Final = InstrumentationScope("queenright.instrumentation")

DEFAULT_ENDPOINT: Final = "http://127.0.0.1:4318"
ENDPOINT_ENV: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_LOGS_ENDPOINT_ENV: Final = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"
_TRACES_ENDPOINT_ENV: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"

_CONNECT_SECONDS: Final = 1.0
_READ_SECONDS: Final = 5.0

# Shorter than the exporters' first retry pause, so that only the delivery retries.
_NO_RETRY_SECONDS: Final = 0.5

_EXPORTER_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.exporter.otlp.proto.common._internal",
    "opentelemetry.attributes",
)

_queenright_threads: Final[set[int]] = set()


def _is_application_record(record: logging.LogRecord) -> bool:
    """Logging filter: drop records of our exporters, which repeat each failure; keep the application's."""
    return record.thread not in _queenright_threads


def resolve_endpoint(endpoint: str | None) -> str:
    """Return the base URL for telemetry: argument, environment, default."""
    return (endpoint or os.environ.get(ENDPOINT_ENV) or DEFAULT_ENDPOINT).rstrip("/")


def get_logs_url(endpoint: str | None) -> str:
    """
    Return the URL for log records, from the argument or OpenTelemetry's environment variables.

    If only a traces endpoint is set, records go to the same host.
    """
    if not endpoint:
        if url := os.environ.get(_LOGS_ENDPOINT_ENV):
            return url
        if not os.environ.get(ENDPOINT_ENV) and (url := os.environ.get(_TRACES_ENDPOINT_ENV)):
            return f"{url.rstrip('/').removesuffix('/v1/traces')}/v1/logs"
    return f"{resolve_endpoint(endpoint)}/v1/logs"


def preload() -> None:
    """
    Import the exporters, which takes about 100 ms once.

    They are not imported with the package, to keep it light, and not in the delivery thread, where a fork
    or the end of the process could interrupt the import.
    """
    import_for_requests()
    from opentelemetry.exporter.otlp.proto.http import _log_exporter, trace_exporter  # noqa: F401


_REMEDIES: Final = dict.fromkeys(
    (401, 403), ": set OTEL_EXPORTER_OTLP_HEADERS to 'Authorization=Bearer%20TOKEN' with a reporter's token"
)


class OtlpSender:
    """
    Sends batches to one endpoint.

    Args:
        endpoint: The base URL, such as ``http://127.0.0.1:4318``. OpenTelemetry's environment variables for
            headers, compression and certificates apply.
        resource: The resource of all spans and records.
        logs: URL for log records; default ``/v1/logs`` below the base URL.
    """

    def __init__(self, endpoint: str, resource: Resource, *, logs: str | None = None) -> None:
        import requests
        from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk._logs.export import LogRecordExportResult
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._span_sent, self._log_sent = SpanExportResult.SUCCESS, LogRecordExportResult.SUCCESS
        # An application that traces its HTTP clients must not trace the delivery of its traces.
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        sender = self

        class Session(requests.Session):
            def request(self, *args: Any, **kwargs: Any) -> Response:
                sender.status, sender.error = None, ""
                kwargs["timeout"] = (_CONNECT_SECONDS, _READ_SECONDS)
                try:
                    response = super().request(*args, **kwargs)
                except Exception as error:
                    sender.error = type(error).__name__
                    raise
                sender.status = response.status_code
                return response

        self.endpoint = endpoint
        self.destination = redact(endpoint)
        self._logs_url = logs or f"{endpoint}/v1/logs"
        self.status: int | None = None
        self.error = ""
        self._resource = resource
        _queenright_threads.add(threading.get_ident())
        for name in _EXPORTER_LOGGERS:
            logging.getLogger(name).addFilter(_is_application_record)
        self._spans = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=_NO_RETRY_SECONDS, session=Session())
        self._logs = OTLPLogExporter(self._logs_url, timeout=_NO_RETRY_SECONDS, session=Session())

    def send(self, signal: Signal, batch: Sequence[Any]) -> SendResult:
        """Send one batch; ask for a retry if the service is unreachable or overloaded."""
        self.status, self.error = None, ""
        url = redact(self._logs_url.removesuffix("/v1/logs") if signal == "logs" else self.endpoint)
        self.destination = f"{url} (no response)"
        if self._export(signal, batch):
            return SendResult.DELIVERED
        if self.status is None and not self.error:
            return self._send_one_by_one(signal, batch)
        reason = self.error or f"HTTP status {self.status}{_REMEDIES.get(self.status or 0, '')}"
        self.destination = f"{url} ({reason})"
        if self.status is None or self.status in TRANSIENT_STATUSES:
            return SendResult.RETRY
        warn_once(
            "Queenright cannot deliver telemetry to %s; the agent continues without it.", self.destination
        )
        return SendResult.REJECTED

    def _export(self, signal: Signal, batch: Sequence[Any]) -> bool:
        if signal == "spans":
            spans = [span.to_readable_span(self._resource, SCOPE) for span in batch]
            return self._spans.export(spans) is self._span_sent
        records = [ReadableLogRecord(record.to_log_record(), self._resource, SCOPE) for record in batch]
        return self._logs.export(records) is self._log_sent

    def _send_one_by_one(self, signal: Signal, batch: Sequence[Any]) -> SendResult:
        """Send the items of a batch that could not be encoded one by one; drop those that cannot be sent."""
        if len(batch) == 1:
            return SendResult.REJECTED
        for item in batch:
            if self.send(signal, [item]) is not SendResult.DELIVERED:
                DROPPED.count(signal)
        return SendResult.DELIVERED

    def close(self) -> None:
        """Close the connections."""
        for exporter in (self._spans, self._logs):
            exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK's is untyped
        _queenright_threads.discard(threading.get_ident())
