"""Watching the spans of other instrumentations: one call, or none under ``opentelemetry-instrument``."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import ref

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import TracerProvider

from queenright.instrumentation.delivery import Delivery, Sender
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.harmless import harmless, notice
from queenright.instrumentation.open_spans import OpenSpans
from queenright.instrumentation.otlp import OtlpSender, endpoint_of, logs_url, preload
from queenright.instrumentation.telemetry import ApplicationLogs, application_logs, application_provider

_PROTOCOL_ENV: Final = ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER_ENV: Final = "OTEL_TRACES_EXPORTER"


class _Watched:
    """The processors of this process, one a tracer provider."""

    def __init__(self) -> None:
        # By identity: not every provider can be a key, nor be referred to weakly.
        self._by_provider: dict[int, ref[OpenSpans]] = {}
        self._forked()
        after_fork_in_child(self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def watch(self, provider: Any, endpoint: str | None) -> None:
        with self._lock:
            known = self._by_provider.get(id(provider))
            processor = known() if known is not None else None
            # One that was shut down, with the provider or by a new configuration, is replaced.
            if processor is None or processor.is_closed:
                processor = OpenSpans(Delivery(_connect(provider, endpoint)))
                provider.add_span_processor(processor)
                self._by_provider[id(provider)] = ref(processor)

    def close(self) -> None:
        for known in list(self._by_provider.values()):
            if (processor := known()) is not None:
                processor.close()


_watched: Final = _Watched()
atexit.register(_watched.close)


def watch_spans(provider: TracerProvider | None = None, *, endpoint: str | None = None) -> bool:
    """
    Report agents, model calls and tool calls of any instrumentation while they are open.

    Call it once OpenTelemetry is set up. It adds a processor to the tracer provider and changes nothing else;
    a second call for the same provider does nothing.

    Args:
        provider: The tracer provider of OpenTelemetry's SDK; the process's own if left out.
        endpoint: The base URL that records go to, such as ``http://127.0.0.1:4318``; if left out, the one of
            OpenTelemetry's variables.

    Returns:
        Whether spans are watched; if not, a warning says why.

    >>> watch_spans()
    """
    with harmless:
        provider = provider or application_provider()
        if not hasattr(provider, "add_span_processor"):
            notice(
                "watch_spans() watches nothing: the tracer provider is %s, to which no span processor can be "
                "added. Call it after OpenTelemetry is set up, or pass the provider: watch_spans(provider).",
                "not set" if provider is None else f"a {type(provider).__name__}",
            )
            return False
        _watched.watch(provider, endpoint)
        return True
    return False


def _connect(provider: Any, endpoint: str | None) -> Callable[[], Sender]:
    """Return what makes the sender: OTLP over HTTP, or the application's own logs if it speaks gRPC."""
    protocol = next((value for name in _PROTOCOL_ENV if (value := os.environ.get(name))), "")
    if endpoint is None and protocol == "grpc" and (logs := application_logs()) is not None:
        return lambda: ApplicationLogs(logs)
    preload()
    # The spans' own, so that a record and its span are of one service and one process.
    resource = getattr(provider, "resource", None) or Resource.create()
    return lambda: OtlpSender(endpoint_of(endpoint), resource, logs=logs_url(endpoint))


class SpanWatchInstrumentor:
    """
    What ``opentelemetry-instrument`` finds by our entry point: it calls `watch_spans` once all is set up.

    ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=queenright`` turns it off.
    """

    def instrument(self, **_: Any) -> None:
        """Watch the spans of the process if it exports them by OTLP."""
        exporters = os.environ.get(_EXPORTER_ENV, "otlp").split(",")
        if any(name.strip().startswith("otlp") for name in exporters) and application_provider() is not None:
            watch_spans()
