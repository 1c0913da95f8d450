"""Traces as lists of spans, from Tempo's JSON or from the event log."""

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
    """A span. Times are in seconds since the epoch."""

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
        Return the spans of a trace, oldest first. The list is empty if there is no such trace.

        Raises:
            StackError: The source is unavailable.
        """
        ...


def read_otlp(answer: Any) -> list[TraceSpan]:
    """
    Return the spans of a trace in OTLP JSON, oldest first. Both forms of Tempo's trace APIs are accepted.

    Raises:
        ValueError: The body is not a trace in OTLP JSON.
    """
    try:
        document = answer.get("trace") or answer
        spans = list(_parse_spans(document.get("batches") or document.get("resourceSpans") or []))
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError("not a trace in OTLP JSON") from error
    return sorted(spans, key=lambda span: (span.start, span.end or span.start))


def _parse_spans(rows: Iterable[Any]) -> Iterator[TraceSpan]:
    for row in rows:
        resource = _parse_attributes((row.get("resource") or {}).get("attributes"))
        for scope in row.get("scopeSpans") or row.get("instrumentationLibrarySpans") or ():
            for span in scope.get("spans") or ():
                attributes = _parse_attributes(span.get("attributes"))
                yield TraceSpan(
                    name=str(span.get("name") or ""),
                    start=_to_seconds(span.get("startTimeUnixNano")) or 0.0,
                    end=_to_seconds(span.get("endTimeUnixNano")),
                    span_id=to_hexadecimal(span.get("spanId")),
                    parent_id=to_hexadecimal(span.get("parentSpanId")),
                    error=_find_error(span, attributes),
                    attributes=resource | attributes,
                )


def _parse_attributes(rows: Any) -> dict[str, Any]:
    return {str(row["key"]): _parse_value(row.get("value")) for row in rows or ()}


def _parse_value(value: Any) -> Any:
    """Return the content of an OTLP value. Integers are parsed from their JSON strings."""
    if not isinstance(value, dict):
        return value
    for kind, content in value.items():
        if kind == "intValue":
            return int(content)
        if kind == "arrayValue":
            return [_parse_value(item) for item in (content or {}).get("values") or ()]
        if kind == "kvlistValue":
            return _parse_attributes((content or {}).get("values"))
        return content
    return None


def _find_error(span: Mapping[str, Any], attributes: Mapping[str, Any]) -> str:
    status = span.get("status") or {}
    is_failure = status.get("code") in (2, "STATUS_CODE_ERROR")
    message = str(status.get("message") or attributes.get(names.ERROR_TYPE) or "")
    for event in span.get("events") or ():
        if event.get("name") == "exception":
            exception_attributes = _parse_attributes(event.get("attributes"))
            message = ": ".join(
                str(exception_attributes[key])
                for key in ("exception.type", "exception.message")
                if exception_attributes.get(key)
            )
    return (message or "error") if is_failure or attributes.get(names.ERROR_TYPE) else ""


def _to_seconds(nanoseconds: Any) -> float | None:
    return int(nanoseconds) / 1e9 if nanoseconds else None


def to_hexadecimal(span_or_trace_id: Any) -> str:
    """Return an id in hexadecimal. OTLP JSON uses hexadecimal, and Tempo's protobuf JSON uses base64."""
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
