"""Traces as spans, from Tempo's JSON or from our own event log."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from queenright.instrumentation import names

TRACE_ID: Final = r"^[0-9a-fA-F]{16,32}$"


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span; times in seconds since the epoch."""

    name: str
    start: float
    end: float | None
    span_id: str = ""
    parent_id: str = ""
    error: str = ""
    """The error message; empty without an error."""
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tool(self) -> str:
        """The called tool, or an empty string."""
        return str(self.attributes.get(names.GEN_AI_TOOL_NAME) or "")


class Traces(Protocol):
    """A source of traces."""

    async def trace(self, trace_id: str) -> list[TraceSpan]:
        """
        Return the spans of a trace, oldest first; none if there is no such trace.

        Raises:
            StackError: The source is unavailable.
        """
        ...


def read_otlp(answer: Any) -> list[TraceSpan]:
    """
    Return the spans of a trace in OTLP JSON, in either wrapping of Tempo's trace APIs; oldest first.

    Raises:
        ValueError: The body is not a trace in OTLP JSON.
    """
    try:
        document = answer.get("trace") or answer
        spans = list(_spans(document.get("batches") or document.get("resourceSpans") or []))
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError("not a trace in OTLP JSON") from error
    return sorted(spans, key=lambda span: (span.start, span.end or span.start))


def _spans(rows: Iterable[Any]) -> Iterator[TraceSpan]:
    for row in rows:
        resource = _attributes((row.get("resource") or {}).get("attributes"))
        for scope in row.get("scopeSpans") or row.get("instrumentationLibrarySpans") or ():
            for span in scope.get("spans") or ():
                attributes = _attributes(span.get("attributes"))
                yield TraceSpan(
                    name=str(span.get("name") or ""),
                    start=_seconds(span.get("startTimeUnixNano")) or 0.0,
                    end=_seconds(span.get("endTimeUnixNano")),
                    span_id=to_hexadecimal(span.get("spanId")),
                    parent_id=to_hexadecimal(span.get("parentSpanId")),
                    error=_error(span, attributes),
                    attributes=resource | attributes,
                )


def _attributes(rows: Any) -> dict[str, Any]:
    return {str(row["key"]): _value(row.get("value")) for row in rows or ()}


def _value(value: Any) -> Any:
    """Return the content of an OTLP value, with integers parsed from their JSON strings."""
    if not isinstance(value, dict):
        return value
    for kind, content in value.items():
        if kind == "intValue":
            return int(content)
        if kind == "arrayValue":
            return [_value(item) for item in (content or {}).get("values") or ()]
        if kind == "kvlistValue":
            return _attributes((content or {}).get("values"))
        return content
    return None


def _error(span: Mapping[str, Any], attributes: Mapping[str, Any]) -> str:
    status = span.get("status") or {}
    is_failure = status.get("code") in (2, "STATUS_CODE_ERROR")
    message = str(status.get("message") or attributes.get(names.ERROR_TYPE) or "")
    for event in span.get("events") or ():
        if event.get("name") == "exception":
            own = _attributes(event.get("attributes"))
            message = ": ".join(
                str(own[key]) for key in ("exception.type", "exception.message") if own.get(key)
            )
    return (message or "error") if is_failure or attributes.get(names.ERROR_TYPE) else ""


def _seconds(nanoseconds: Any) -> float | None:
    return int(nanoseconds) / 1e9 if nanoseconds else None


def to_hexadecimal(span_or_trace_id: Any) -> str:
    """Return an id in hexadecimal. OTLP JSON uses hexadecimal, Tempo's protobuf JSON base64."""
    text = str(span_or_trace_id or "")
    if len(text) in (16, 32):
        try:
            bytes.fromhex(text)
        except ValueError:
            pass
        else:
            return text.lower()
    try:
        return base64.b64decode(text, validate=True).hex()
    except (binascii.Error, ValueError):
        return text
