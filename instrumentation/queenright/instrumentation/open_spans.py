"""
Open spans: a SpanProcessor that reports what an agent of any framework is doing while it does it.

A span is exported only when it ends, so a call that hangs is not seen while it
hangs. On the agent's thread this notes which spans are open and nothing else.
A thread of its own looks at those that stay open: it reports each that is an
agent's work once, says every half minute that it is still open, and that it
ended. A span that ends within `GRACE` seconds is never reported: its export
says all there is.
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
    fill_template,
    kind_of,
    named_in,
)
from queenright.instrumentation.delivery import Delivery
from queenright.instrumentation.dropped import DROPPED
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.harmless import harmless, report
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import SpanOutcome
from queenright.instrumentation.otlp import SCOPE
from queenright.instrumentation.pulse import LONGEST, PULSE, Pulse
from queenright.instrumentation.telemetry import Record

_IDENTIFYING: Final = {
    field: ATTRIBUTES[field]
    for field in ("agent", "session", "operation", "marker", "entity", "model", "provider", "tool", "call_id")
}
"""What says whose span it is and of what. No content is among them."""

GRACE: Final = 0.5
"""Seconds that a span stays open before it is reported."""

INTERVAL: Final = 30.0
"""Seconds between two heartbeats of an open span."""

CAPACITY: Final = 10_000
"""So many open spans are known at most; further ones are not reported, and counted."""

_FLUSH_SECONDS: Final = 2.0
_LONGEST_READ: Final = 16_384
"""Characters of an attribute that are looked at, as in the service, so that a long id is the same in both."""
_EXCEPTION_TYPE: Final = "exception.type"

_IDLE: Final = 2
"""After so many ticks in which no span began, and while none is open, the ticks become rare."""

Attributes = dict[str, str | int | float | bool]


@dataclass(slots=True)
class _Reported:
    """A span whose start was sent."""

    span: ref[Span]
    context: SpanContext
    attributes: Attributes
    reported: int
    """When it was last said to be open, in nanoseconds since the epoch."""


class OpenSpans(SpanProcessor):
    """
    Sends log records about spans that stay open.

    Spans are held by weak references: one that its library lost without ending it is reported as ended,
    outcome unknown, once it is collected.

    Args:
        delivery: Takes the records.
        clock: Returns nanoseconds since the epoch.
        pulse: The thread that looks at the spans.
    """

    def __init__(
        self, delivery: Delivery, *, clock: Callable[[], int] = time.time_ns, pulse: Pulse = PULSE
    ) -> None:
        self._delivery = delivery
        self._clock = clock
        self._pulse = pulse
        self.is_closed = False
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        # In a forked child the spans that are open are its parent's, which reports them.
        self._new: dict[int, ref[Span]] = {}
        self._undecided: dict[int, ref[Span]] = {}
        self._reported: dict[int, _Reported] = {}
        self._undecided_seen = 0
        self._lock = threading.Lock()
        """Of `tick` and `shutdown`; the agent's threads take none."""
        self._calm_ticks = _IDLE

    # The agent's threads put spans into the first and take them out of each; the pulse moves them on, with no
    # lock. A span is out of `_reported` while a record of it is being queued, so that its end is the last.

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Note that a span is open."""
        try:
            if self.is_closed:
                return
            if len(self._new) < CAPACITY:
                self._new[span.get_span_context().span_id] = ref(span)
            else:
                DROPPED.count("logs")
            if self._calm_ticks:
                is_idle = self._calm_ticks >= _IDLE
                self._calm_ticks = 0
                if is_idle:
                    self._pulse.join(self)
        except Exception as error:
            report(error)

    def on_end(self, span: ReadableSpan) -> None:
        """Report the end of a span whose start was reported."""
        try:
            context = span.get_span_context()
            if context is None or self._new.pop(context.span_id, None) is not None:
                return
            if self._undecided.pop(context.span_id, None) is None:
                entry = self._reported.pop(context.span_id, None)
                if entry is not None:
                    self._put_ended(entry, span)
        except Exception as error:
            report(error)

    def tick(self) -> float:
        """Report what has been open for long enough; return the seconds until something is due next."""
        with self._lock:
            if not self.is_closed:
                return self._look()
        self._pulse.leave(self)
        return LONGEST

    def _look(self) -> float:
        now = self._clock()
        for span_id, reference in list(self._new.items()):
            span = reference()
            if span is None:
                self._new.pop(span_id, None)
            elif _seconds(span.start_time or 0, now) >= GRACE:
                self._decide(self._new, span_id, reference, span, now)
        if not 0 <= _seconds(self._undecided_seen, now) < INTERVAL:
            self._undecided_seen = now
            for span_id, reference in list(self._undecided.items()):
                span = reference()
                if span is None:
                    self._undecided.pop(span_id, None)
                else:
                    self._decide(self._undecided, span_id, reference, span, now)
        for span_id, entry in list(self._reported.items()):
            self._follow(span_id, entry, now)
        if self._reported:
            return GRACE
        # A process that does nothing is looked at rarely; one whose spans are all short is not idle.
        self._calm_ticks += 1
        if self._new:  # noted after the look
            self._calm_ticks = 0
        return LONGEST if self._calm_ticks >= _IDLE else GRACE

    def _decide(
        self, source: dict[int, ref[Span]], span_id: int, reference: ref[Span], span: Span, now: int
    ) -> None:
        """Report a span, or keep it to be looked at again: some libraries say later what it is."""
        attributes = self._describe(span) if _is_exported(span) else None
        if attributes is not None:
            if len(self._reported) >= CAPACITY:
                DROPPED.count("logs")
                source.pop(span_id, None)
                return
            entry = _Reported(reference, span.get_span_context(), attributes, now)
            self._put(names.EVENT_SPAN_STARTED, span.start_time or now, entry)
            self._reported[span_id] = entry
            source.pop(span_id, None)
        elif source is self._new:
            if _is_exported(span) and len(self._undecided) < CAPACITY:
                self._undecided[span_id] = reference
            if source.pop(span_id, None) is None:
                self._undecided.pop(span_id, None)

    def _follow(self, span_id: int, entry: _Reported, now: int) -> None:
        """Say that a reported span is still open when that is due, or that it was lost."""
        span = entry.span()
        if span is None or not span.is_recording():
            # Collected; or ended while a record was queued, or without on_end: another processor raised.
            if self._reported.pop(span_id, None) is not None:
                self._put_ended(entry, span)
        elif not 0 <= _seconds(entry.reported, now) < INTERVAL:
            entry.attributes = self._describe(span) or entry.attributes
            entry.reported = now
            # Taken out meanwhile, or the end could be reported before this; then the next look reports it.
            if self._reported.pop(span_id, None) is not None:
                self._put(names.EVENT_SPAN_OPEN, now, entry)
                self._reported[span_id] = entry

    def _describe(self, span: Span) -> Attributes | None:
        # One span that cannot be read must not hide the others.
        with harmless:
            return describe(span, self._parent_id(span))
        return None

    def _parent_id(self, span: ReadableSpan) -> int | None:
        """Return the nearest span above that was reported, else the parent."""
        parent = span.parent
        while parent is not None and parent.span_id not in self._reported:
            reference = self._undecided.get(parent.span_id)
            above = reference() if reference is not None else None
            parent = above.parent if above is not None else None
        parent = parent or span.parent
        return parent.span_id if parent is not None else None

    def _put(self, event: str, time_ns: int, entry: _Reported) -> None:
        self._delivery.put_record(Record(event, time_ns, entry.context, entry.attributes))

    def _put_ended(self, entry: _Reported, span: ReadableSpan | None) -> None:
        self._delivery.put_record(
            Record(
                names.EVENT_SPAN_ENDED,
                (span.end_time if span is not None else None) or self._clock(),
                entry.context,
                entry.attributes | _ending(span),
            )
        )

    def close(self) -> None:
        """End with the process: what is open now is not heard of again."""
        self.shutdown()

    def shutdown(self) -> None:
        """Report what is open as ended, outcome unknown; deliver for a few seconds at most."""
        with harmless:
            with self._lock:
                if self.is_closed:
                    return
                self.is_closed = True
            for span_id in list(self._reported):
                entry = self._reported.pop(span_id, None)
                if entry is not None:
                    self._put_ended(entry, entry.span())
            self._delivery.close()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Send what is queued. Always true: else the SDK would not flush the application's own processors."""
        with harmless:
            self._delivery.flush(min(timeout_millis / 1000, _FLUSH_SECONDS))
        return True


def describe(span: ReadableSpan, parent_id: int | None) -> Attributes | None:
    """
    Return what a record says of a span, or None if it is no work of an agent's, as far as it says now.

    Only what identifies it, never content; what looks like a secret is masked.

    Args:
        span: The span, of any library.
        parent_id: The span that it is part of.
    """
    found: Mapping[str, object] = span.attributes or {}
    known = {field: _first(found, spellings) for field, spellings in _IDENTIFYING.items()}
    scope = span.instrumentation_scope.name if span.instrumentation_scope else ""
    name = fill_template(span.name, lambda field: _first(found, (field,)))
    kind, thing = kind_of(known["operation"], known["marker"], name), named_in(name)
    if kind is None and (known["operation"] or known["marker"] or not scope.startswith(SCOPES)):
        return None
    said: dict[str, str] = {
        names.OPEN_SPAN_KIND: kind or "",
        names.OPEN_SPAN_NAME: name,
        names.OPEN_SPAN_SCOPE: scope,
        names.OPEN_SPAN_PARENT_ID: f"{parent_id:016x}" if parent_id else "",
        names.GEN_AI_AGENT_NAME: known["agent"] or (thing if kind is Kind.AGENT else ""),
        names.GEN_AI_CONVERSATION_ID: known["session"],
        names.GEN_AI_REQUEST_MODEL: known["model"],
        names.GEN_AI_PROVIDER_NAME: known["provider"],
    }
    if kind is Kind.TOOL:
        said[names.GEN_AI_TOOL_NAME] = known["tool"] or known["entity"] or thing
        said[names.GEN_AI_TOOL_CALL_ID] = known["call_id"]
    attributes: Attributes = {key: cleaned for key, value in said.items() if (cleaned := clean_name(value))}
    attributes[names.OPEN_SPAN_START] = span.start_time or 0
    attributes[names.HEARTBEAT_INTERVAL] = INTERVAL
    return attributes


def _ending(span: ReadableSpan | None) -> Attributes:
    """Return what the end of a span says."""
    if span is None or span.end_time is None:
        return {names.OPEN_SPAN_OUTCOME: SpanOutcome.UNKNOWN.value}
    if span.status.status_code is not StatusCode.ERROR:
        return {names.OPEN_SPAN_OUTCOME: SpanOutcome.OK.value}
    ending: Attributes = {names.OPEN_SPAN_OUTCOME: SpanOutcome.ERROR.value}
    error = _first(span.attributes or {}, (names.ERROR_TYPE,))
    for event in span.events:
        error = error or _first(event.attributes or {}, (_EXCEPTION_TYPE,))
    if error := clean_name(error):
        ending[names.ERROR_TYPE] = error
    return ending


def _is_exported(span: ReadableSpan) -> bool:
    """Return whether a span is sampled, and none of ours, which has start records of its own."""
    context, scope = span.get_span_context(), span.instrumentation_scope
    is_sampled = context is not None and context.trace_flags.sampled
    return is_sampled and (scope is None or scope.name != SCOPE.name)


def _first(attributes: Mapping[str, object], spellings: tuple[str, ...]) -> str:
    """Return the first of some attributes that is there, as text; sequences are none."""
    for name in spellings:
        value = attributes.get(name)
        if isinstance(value, str | int | float) and value != "":
            return str(value)[:_LONGEST_READ]
    return ""


def _seconds(earlier: int, later: int) -> float:
    return (later - earlier) / 1e9
