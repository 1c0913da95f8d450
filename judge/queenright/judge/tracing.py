"""From the page back to the step: spans linked by the ids that workers and tickets carry."""

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


def links_to(trace_id: str, span_id: str) -> list[Link]:
    """Return a link to the span of these ids (hexadecimal), or none if they name no span."""
    context = _context(trace_id, span_id)
    return [Link(context)] if context.is_valid else []


def child_of(trace_id: str, span_id: str) -> Context | None:
    """Return the context in which a new span is a child of the span of these ids; None if they name none."""
    context = _context(trace_id, span_id)
    return set_span_in_context(NonRecordingSpan(context), Context()) if context.is_valid else None


def ids_of(span: Span) -> tuple[str, str]:
    """Return (trace id, span id) in hexadecimal; empty where nothing is traced."""
    context = span.get_span_context()
    if not context.is_valid:
        return "", ""
    return format_trace_id(context.trace_id), format_span_id(context.span_id)


def _context(trace_id: str, span_id: str) -> SpanContext:
    try:
        return SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(TraceFlags.SAMPLED))
    except ValueError:
        return INVALID_SPAN_CONTEXT
