"""Report open spans of other instrumentations: one call, or automatic with ``opentelemetry-instrument``."""

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
from queenright.instrumentation.error_guard import suppress_errors, warn_once
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.open_spans import OpenSpans
from queenright.instrumentation.otlp import OtlpSender, get_logs_url, preload, resolve_endpoint
from queenright.instrumentation.telemetry import (
    ApplicationLogs,
    get_application_logs,
    get_application_provider,
)

_PROTOCOL_ENV: Final = ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER_ENV: Final = "OTEL_TRACES_EXPORTER"


class _SpanWatchers:
    """The span processors of this process, one per tracer provider."""

    def __init__(self) -> None:
        # By id: not every provider is hashable or can be weakly referenced.
        self._by_provider: dict[int, ref[OpenSpans]] = {}
        self._reset_lock()
        after_fork_in_child(self._reset_lock)

    def _reset_lock(self) -> None:
        self._lock = threading.Lock()

    def watch(self, provider: Any, endpoint: str | None) -> None:
        with self._lock:
            reference = self._by_provider.get(id(provider))
            processor = reference() if reference is not None else None
            # Replace a processor that was shut down, by the provider or a new configuration.
            if processor is None or processor.is_closed:
                processor = OpenSpans(Delivery(_connect(provider, endpoint)))
                provider.add_span_processor(processor)
                self._by_provider[id(provider)] = ref(processor)

    def close(self) -> None:
        for reference in list(self._by_provider.values()):
            if (processor := reference()) is not None:
                processor.close()


_watchers: Final = _SpanWatchers()
atexit.register(_watchers.close)


def watch_spans(provider: TracerProvider | None = None, *, endpoint: str | None = None) -> bool:
    """
    Report agents, model calls and tool calls of any instrumentation while their spans are open.

    Call it after OpenTelemetry is set up. It adds a span processor to the tracer provider and changes
    nothing else. A second call for the same provider does nothing.

    Args:
        provider: The SDK tracer provider; default the global one.
        endpoint: Base URL for the records, such as ``http://127.0.0.1:4318``; default from the
            ``OTEL_EXPORTER_OTLP_*`` environment variables.

    Returns:
        Whether spans are watched. If not, a warning gives the reason.

    >>> watch_spans()
    """
    with suppress_errors:
        provider = provider or get_application_provider()
        if not hasattr(provider, "add_span_processor"):
            warn_once(
                "watch_spans() has no effect: the tracer provider is %s and does not accept span processors. "
                "Call it after OpenTelemetry is set up, or pass the provider: watch_spans(provider).",
                "not set" if provider is None else f"a {type(provider).__name__}",
            )
            return False
        _watchers.watch(provider, endpoint)
        return True
    return False


def _connect(provider: Any, endpoint: str | None) -> Callable[[], Sender]:
    """Return a sender factory: OTLP over HTTP, or the application's logger if it exports over gRPC."""
    protocol = next((value for name in _PROTOCOL_ENV if (value := os.environ.get(name))), "")
    if endpoint is None and protocol == "grpc" and (logs := get_application_logs()) is not None:
        return lambda: ApplicationLogs(logs)
    preload()
    # The provider's resource, so that a record and its span belong to the same service and process.
    resource = getattr(provider, "resource", None) or Resource.create()
    return lambda: OtlpSender(resolve_endpoint(endpoint), resource, logs=get_logs_url(endpoint))


class SpanWatchInstrumentor:
    """
    The entry point for ``opentelemetry-instrument``, which calls `watch_spans` after setup.

    Set ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=queenright`` to turn it off.
    """

    def instrument(self, **_: Any) -> None:
        """Watch spans if the process exports them over OTLP."""
        exporters = os.environ.get(_EXPORTER_ENV, "otlp").split(",")
        if (
            any(name.strip().startswith("otlp") for name in exporters)
            and get_application_provider() is not None
        ):
            watch_spans()
