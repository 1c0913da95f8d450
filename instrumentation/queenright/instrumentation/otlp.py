"""OTLP over HTTP: batches of spans and start records to the service, by OpenTelemetry's own exporters."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from queenright.instrumentation.delivery import Sent
from queenright.instrumentation.dropped import DROPPED, Signal
from queenright.instrumentation.forks import import_for_requests
from queenright.instrumentation.harmless import notice
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

# With less time than their first pause, the exporters do not try again themselves: the delivery decides.
_NO_RETRY_SECONDS: Final = 0.5

_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})

_EXPORTER_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.exporter.otlp.proto.common._internal",
    "opentelemetry.attributes",
)

_our_threads: Final[set[int]] = set()


def _not_ours(record: logging.LogRecord) -> bool:
    """Let pass what the application's own exporters say; ours say each failure again and again."""
    return record.thread not in _our_threads


def endpoint_of(endpoint: str | None) -> str:
    """Return the base URL that telemetry goes to: argument, environment, default."""
    return (endpoint or os.environ.get(ENDPOINT_ENV) or DEFAULT_ENDPOINT).rstrip("/")


def logs_url(endpoint: str | None) -> str:
    """
    Return where log records go, as OpenTelemetry's variables say.

    A process that names an endpoint for its spans only sends its records to the same place.
    """
    if not endpoint:
        if url := os.environ.get(_LOGS_ENDPOINT_ENV):
            return url
        if not os.environ.get(ENDPOINT_ENV) and (url := os.environ.get(_TRACES_ENDPOINT_ENV)):
            return f"{url.rstrip('/').removesuffix('/v1/traces')}/v1/logs"
    return f"{endpoint_of(endpoint)}/v1/logs"


def preload() -> None:
    """
    Import what sending needs; about 100 ms, once.

    Not with the package, whose import stays light, and not in the delivery's thread, where a fork
    or the end of the process could come in the middle of it.
    """

    import_for_requests()
    from opentelemetry.exporter.otlp.proto.http import _log_exporter, trace_exporter  # noqa: F401


class OtlpSender:
    """
    Sends batches to one endpoint.

    Args:
        endpoint: The base URL, such as ``http://127.0.0.1:4318``. Environment variables of
            OpenTelemetry for headers, compression and certificates hold.
        resource: What the records are attributed to.
        logs: Where log records go instead of ``/v1/logs`` below the base URL.
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
        self._logs_url = logs or f"{endpoint}/v1/logs"
        self.status: int | None = None
        self.error = ""
        self._resource = resource
        _our_threads.add(threading.get_ident())
        for name in _EXPORTER_LOGGERS:
            logging.getLogger(name).addFilter(_not_ours)
        self._spans = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=_NO_RETRY_SECONDS, session=Session())
        self._logs = OTLPLogExporter(self._logs_url, timeout=_NO_RETRY_SECONDS, session=Session())

    def send(self, signal: Signal, batch: Sequence[Any]) -> Sent:
        """Send one batch; a service that is away or overloaded gets it later."""
        self.status, self.error = None, ""
        if self._export(signal, batch):
            return Sent.DONE
        if self.status is None and not self.error:
            return self._send_what_can_be_encoded(signal, batch)
        notice(
            "Queenright's telemetry is not delivered to %s (%s); the agent goes on, delivery is tried again.",
            redact(self._logs_url.removesuffix("/v1/logs") if signal == "logs" else self.endpoint),
            self.error or f"HTTP status {self.status}",
        )
        return Sent.LATER if self.status is None or self.status in _LATER else Sent.REFUSED

    def _export(self, signal: Signal, batch: Sequence[Any]) -> bool:
        if signal == "spans":
            spans = [span.readable(self._resource, SCOPE) for span in batch]
            return self._spans.export(spans) is self._span_sent
        records = [ReadableLogRecord(record.to_log_record(), self._resource, SCOPE) for record in batch]
        return self._logs.export(records) is self._log_sent

    def _send_what_can_be_encoded(self, signal: Signal, batch: Sequence[Any]) -> Sent:
        """Send a batch that no request could be made of without what spoils it."""
        if len(batch) == 1:
            return Sent.REFUSED
        for single in batch:
            if self.send(signal, [single]) is not Sent.DONE:
                DROPPED.count(signal)
        return Sent.DONE

    def close(self) -> None:
        """Close the connections."""
        for exporter in (self._spans, self._logs):
            exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK's is untyped
        _our_threads.discard(threading.get_ident())
