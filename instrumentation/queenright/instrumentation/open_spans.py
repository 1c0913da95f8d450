"""
A SpanProcessor that reports spans of any framework while they are open.

A span is exported only when it ends, so a hanging call is otherwise invisible. On the agent's thread the
processor only records which spans are open. The ticker thread reports each span of an agent's work that
stays open, sends a heartbeat for it every half minute, and reports its end. A span that ends within
`GRACE` seconds is not reported, because its export contains everything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from weakref import ref

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanContext, StatusCode

from queenright.instrumentation import names
from queenright.instrumentation.conventions import (
    ATTRIBUTES,
    SCOPES,
    Kind,
    classify_span,
    extract_subject,
    fill_template,
)
from queenright.instrumentation.delivery import Delivery
from queenright.instrumentation.drop_counter import DROPPED
from queenright.instrumentation.error_guard import report_error, suppress_errors
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import SpanOutcome
from queenright.instrumentation.otlp import SCOPE
from queenright.instrumentation.telemetry import StartRecord
from queenright.instrumentation.ticker import MAX_TICK_SECONDS, TICKER, Ticker

_IDENTIFYING: Final = {
    field: ATTRIBUTES[field]
    for field in ("agent", "session", "operation", "marker", "entity", "model", "provider", "tool", "call_id")
}
"""Attributes that identify a span. None of them contains content."""

GRACE: Final = 0.5
"""Seconds that a span stays open before it is reported."""

INTERVAL: Final = 30.0
"""Seconds between two heartbeats of an open span."""

CAPACITY: Final = 10_000
"""Maximum tracked open spans; further ones are counted as dropped."""

_FLUSH_SECONDS: Final = 2.0
_MAX_READ_BYTES: Final = 16_384
"""Maximum characters of an attribute; must equal the service's limit, so that long ids match."""
_EXCEPTION_TYPE: Final = "exception.type"

_IDLE_TICKS: Final = 2
"""Number of ticks without a new or open span after which ticks become rare."""

Attributes = dict[str, str | int | float | bool]


@dataclass(slots=True)
class _Report:
    """A span whose start was sent."""

    span: ref[Span]
    context: SpanContext
    attributes: Attributes
    report_time: int
    """Time of the last record about it, in nanoseconds since the epoch."""


class OpenSpans(SpanProcessor):
    """
    Sends log records about spans that stay open.

    Spans are held by weak references: a span that is garbage-collected without being ended is reported as
    ended with an unknown outcome.

    Args:
        delivery: Receives the records.
        clock: Returns nanoseconds since the epoch.
        ticker: The thread that checks the spans.
    """

    def __init__(
        self, delivery: Delivery, *, clock: Callable[[], int] = time.time_ns, ticker: Ticker = TICKER
    ) -> None:
        self._delivery = delivery
        self._clock = clock
        self._ticker = ticker
        self.is_closed = False
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        # In a forked child, open spans belong to the parent, which reports them.
        self._new_spans: dict[int, ref[Span]] = {}
        self._undecided_spans: dict[int, ref[Span]] = {}
        self._reports: dict[int, _Report] = {}
        self._undecided_checked_at = 0
        self._lock = threading.Lock()
        """Held by `tick` and `shutdown`; the agent's threads take no lock."""
        self._idle_ticks = _IDLE_TICKS

    # Lock-free: the agent's threads add spans to `_new_spans` and remove them from any dict; the ticker moves
    # them from `_new_spans` to the others. While a record of a span is queued, the span is not in `_reports`,
    # so that its end record always comes last.

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Track a new span."""
        try:
            if self.is_closed:
                return
            if len(self._new_spans) < CAPACITY:
                self._new_spans[span.get_span_context().span_id] = ref(span)
            else:
                DROPPED.count("logs")
            if self._idle_ticks:
                is_idle = self._idle_ticks >= _IDLE_TICKS
                self._idle_ticks = 0
                if is_idle:
                    self._ticker.join(self)
        except Exception as error:
            report_error(error)

    def on_end(self, span: ReadableSpan) -> None:
        """Report the end of a span whose start was reported."""
        try:
            context = span.get_span_context()
            if context is None or self._new_spans.pop(context.span_id, None) is not None:
                return
            if self._undecided_spans.pop(context.span_id, None) is None:
                entry = self._reports.pop(context.span_id, None)
                if entry is not None:
                    self._put_ended(entry, span)
        except Exception as error:
            report_error(error)

    def tick(self) -> float:
        """Report spans that have been open long enough; return the seconds until the next tick."""
        with self._lock:
            if not self.is_closed:
                return self._check_spans()
        self._ticker.leave(self)
        return MAX_TICK_SECONDS

    def _check_spans(self) -> float:
        now = self._clock()
        for span_id, reference in list(self._new_spans.items()):
            span = reference()
            if span is None:
                self._new_spans.pop(span_id, None)
            elif _to_seconds(span.start_time or 0, now) >= GRACE:
                self._report_or_defer(self._new_spans, span_id, reference, span, now)
        if not 0 <= _to_seconds(self._undecided_checked_at, now) < INTERVAL:
            self._undecided_checked_at = now
            for span_id, reference in list(self._undecided_spans.items()):
                span = reference()
                if span is None:
                    self._undecided_spans.pop(span_id, None)
                else:
                    self._report_or_defer(self._undecided_spans, span_id, reference, span, now)
        for span_id, entry in list(self._reports.items()):
            self._update_report(span_id, entry, now)
        if self._reports:
            return GRACE
        # Ticks become rare in an idle process; a process with only short spans is not idle.
        self._idle_ticks += 1
        if self._new_spans:  # added since the check
            self._idle_ticks = 0
        return MAX_TICK_SECONDS if self._idle_ticks >= _IDLE_TICKS else GRACE

    def _report_or_defer(
        self, source: dict[int, ref[Span]], span_id: int, reference: ref[Span], span: Span, now: int
    ) -> None:
        """Report a span, or keep it as undecided: some libraries set its kind later."""
        attributes = self._describe(span) if _is_exported(span) else None
        if attributes is not None:
            if len(self._reports) >= CAPACITY:
                DROPPED.count("logs")
                source.pop(span_id, None)
                return
            entry = _Report(reference, span.get_span_context(), attributes, now)
            self._put(names.EVENT_SPAN_STARTED, span.start_time or now, entry)
            self._reports[span_id] = entry
            source.pop(span_id, None)
        elif source is self._new_spans:
            if _is_exported(span) and len(self._undecided_spans) < CAPACITY:
                self._undecided_spans[span_id] = reference
            if source.pop(span_id, None) is None:
                self._undecided_spans.pop(span_id, None)

    def _update_report(self, span_id: int, entry: _Report, now: int) -> None:
        """Send a heartbeat for a reported span if one is due, or report its end if it was lost."""
        span = entry.span()
        if span is None or not span.is_recording():
            # Garbage-collected, ended while a record was queued, or ended without on_end because another
            # processor raised.
            if self._reports.pop(span_id, None) is not None:
                self._put_ended(entry, span)
        elif not 0 <= _to_seconds(entry.report_time, now) < INTERVAL:
            entry.attributes = self._describe(span) or entry.attributes
            entry.report_time = now
            # Removed while queueing, so that the end is not queued before this record.
            if self._reports.pop(span_id, None) is not None:
                self._put(names.EVENT_SPAN_OPEN, now, entry)
                self._reports[span_id] = entry

    def _describe(self, span: Span) -> Attributes | None:
        # One unreadable span must not hide the others.
        with suppress_errors:
            return describe(span, self._find_parent_id(span))
        return None

    def _find_parent_id(self, span: ReadableSpan) -> int | None:
        """Return the nearest reported ancestor, otherwise the parent."""
        parent = span.parent
        while parent is not None and parent.span_id not in self._reports:
            reference = self._undecided_spans.get(parent.span_id)
            ancestor = reference() if reference is not None else None
            parent = ancestor.parent if ancestor is not None else None
        parent = parent or span.parent
        return parent.span_id if parent is not None else None

    def _put(self, event: str, time_ns: int, entry: _Report) -> None:
        self._delivery.put_record(StartRecord(event, time_ns, entry.context, entry.attributes))

    def _put_ended(self, entry: _Report, span: ReadableSpan | None) -> None:
        self._delivery.put_record(
            StartRecord(
                names.EVENT_SPAN_ENDED,
                (span.end_time if span is not None else None) or self._clock(),
                entry.context,
                entry.attributes | _describe_end(span),
            )
        )

    def close(self) -> None:
        """Shut down at the end of the process."""
        self.shutdown()

    def shutdown(self) -> None:
        """Report open spans as ended with an unknown outcome, and deliver for a few seconds at most."""
        with suppress_errors:
            with self._lock:
                if self.is_closed:
                    return
                self.is_closed = True
            for span_id in list(self._reports):
                entry = self._reports.pop(span_id, None)
                if entry is not None:
                    self._put_ended(entry, entry.span())
            self._delivery.close()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Send queued records. Always True, otherwise the SDK skips the application's own processors."""
        with suppress_errors:
            self._delivery.flush(min(timeout_millis / 1000, _FLUSH_SECONDS))
        return True


def describe(span: ReadableSpan, parent_id: int | None) -> Attributes | None:
    """
    Return the attributes of a record about a span, or None if the span is not known to be an agent's work.

    The attributes identify the span and contain no content; secrets are masked.

    Args:
        span: A span of any library.
        parent_id: The id of the parent span.
    """
    span_attributes: Mapping[str, object] = span.attributes or {}
    fields = {field: _get_first_text(span_attributes, spellings) for field, spellings in _IDENTIFYING.items()}
    scope = span.instrumentation_scope.name if span.instrumentation_scope else ""
    name = fill_template(span.name, lambda field: _get_first_text(span_attributes, (field,)))
    kind, subject = classify_span(fields["operation"], fields["marker"], name), extract_subject(name)
    if kind is None and (fields["operation"] or fields["marker"] or not scope.startswith(SCOPES)):
        return None
    values: dict[str, str] = {
        names.OPEN_SPAN_KIND: kind or "",
        names.OPEN_SPAN_NAME: name,
        names.OPEN_SPAN_SCOPE: scope,
        names.OPEN_SPAN_PARENT_ID: f"{parent_id:016x}" if parent_id else "",
        names.GEN_AI_AGENT_NAME: fields["agent"] or (subject if kind is Kind.AGENT else ""),
        names.GEN_AI_CONVERSATION_ID: fields["session"],
        names.GEN_AI_REQUEST_MODEL: fields["model"],
        names.GEN_AI_PROVIDER_NAME: fields["provider"],
    }
    if kind is Kind.TOOL:
        values[names.GEN_AI_TOOL_NAME] = fields["tool"] or fields["entity"] or subject
        values[names.GEN_AI_TOOL_CALL_ID] = fields["call_id"]
    attributes: Attributes = {
        key: clean_value for key, value in values.items() if (clean_value := clean_name(value))
    }
    attributes[names.OPEN_SPAN_START] = span.start_time or 0
    attributes[names.HEARTBEAT_INTERVAL] = INTERVAL
    return attributes


def _describe_end(span: ReadableSpan | None) -> Attributes:
    """Return the attributes of an end record: the outcome, and the error type of a failed span."""
    if span is None or span.end_time is None:
        return {names.OPEN_SPAN_OUTCOME: SpanOutcome.UNKNOWN.value}
    if span.status.status_code is not StatusCode.ERROR:
        return {names.OPEN_SPAN_OUTCOME: SpanOutcome.OK.value}
    attributes: Attributes = {names.OPEN_SPAN_OUTCOME: SpanOutcome.ERROR.value}
    error = _get_first_text(span.attributes or {}, (names.ERROR_TYPE,))
    for event in span.events:
        error = error or _get_first_text(event.attributes or {}, (_EXCEPTION_TYPE,))
    if error := clean_name(error):
        attributes[names.ERROR_TYPE] = error
    return attributes


def _is_exported(span: ReadableSpan) -> bool:
    """Return whether a span is sampled and not a Queenright span, which has its own start record."""
    context, scope = span.get_span_context(), span.instrumentation_scope
    is_sampled = context is not None and context.trace_flags.sampled
    return is_sampled and (scope is None or scope.name != SCOPE.name)


def _get_first_text(attributes: Mapping[str, object], spellings: tuple[str, ...]) -> str:
    """Return the first non-empty attribute as text, or ""; sequences are ignored."""
    for name in spellings:
        value = attributes.get(name)
        if isinstance(value, str | int | float) and value != "":
            return str(value)[:_MAX_READ_BYTES]
    return ""


def _to_seconds(earlier: int, later: int) -> float:
    return (later - earlier) / 1e9
