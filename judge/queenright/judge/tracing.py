"""Connect spans by the trace ids of workers and tickets, so that a notification leads back to the step."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    TraceFlags,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)


def build_links(trace_id: str, span_id: str) -> list[Link]:
    """Return a list with a link to the span with these hexadecimal ids. It is empty if they are invalid."""
    context = _make_span_context(trace_id, span_id)
    return [Link(context)] if context.is_valid else []


def child_context(trace_id: str, span_id: str) -> Context | None:
    """Return the context for a child of the span with these ids, or None if they are invalid."""
    context = _make_span_context(trace_id, span_id)
    return set_span_in_context(NonRecordingSpan(context), Context()) if context.is_valid else None


def get_span_ids(span: Span) -> tuple[str, str]:
    """Return the trace id and the span id in hexadecimal, or empty strings without tracing."""
    context = span.get_span_context()
    if not context.is_valid:
        return "", ""
    return format_trace_id(context.trace_id), format_span_id(context.span_id)


def _make_span_context(trace_id: str, span_id: str) -> SpanContext:
    try:
        return SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(TraceFlags.SAMPLED))
    except ValueError:
        return INVALID_SPAN_CONTEXT
