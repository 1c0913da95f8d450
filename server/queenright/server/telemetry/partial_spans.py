"""Partial spans: log records whose body is an open span. Pure."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import orjson
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from queenright.server.http.json_limits import JsonFormatError, JsonSizeError, check_json_size
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.spans import read_span
from queenright.server.telemetry.unusable import RecordFault, UnusableRecordError

_MAX_BODY: Final = 1024 * 1024
_MAX_VALUES: Final = 20_000
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_HEARTBEAT: Final = "heartbeat"


def read_partial_span(event: str, body: AnyValue, now: float) -> Observation | None:
    """
    Return the start of the span in a record's body; None if the span has ended and is exported itself.

    The body is OTLP's TracesData with one span, as JSON or base64 protobuf. The span's resource is the one in
    the body; the record's may differ.

    Raises:
        UnusableRecordError: The body is not a span. The message is for the sender.
    """
    if event != _HEARTBEAT:
        return None
    text = body.string_value
    if len(text) > _MAX_BODY:
        raise UnusableRecordError(
            RecordFault.TOO_LARGE, f"a partial span of more than {_MAX_BODY} characters"
        )
    try:
        resource, scope, span = _from_json(text) if text.startswith("{") else _from_protobuf(text)
    except (
        *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
        *(DecodeError, JsonFormatError, JsonSizeError, json_format.Error),
    ):
        raise UnusableRecordError(
            RecordFault.INVALID_SPAN, "a partial span whose body is not TracesData with a span"
        ) from None
    span.end_time_unix_nano = 0
    return read_span(span, Process.from_resource(resource), scope, now)


def _from_protobuf(text: str) -> tuple[Resource, InstrumentationScope, Span]:
    data = TracesData.FromString(base64.b64decode(text, validate=True))
    group = data.resource_spans[0]
    part = group.scope_spans[0]
    return group.resource, part.scope, part.spans[0]


def _from_json(text: str) -> tuple[Resource, InstrumentationScope, Span]:
    raw = text.encode()
    check_json_size(raw, _MAX_VALUES)
    group = orjson.loads(raw)["resourceSpans"][0]
    part = group["scopeSpans"][0]
    span = {key: value for key, value in part["spans"][0].items() if key != "links"}
    for key in _IDS:
        if span.get(key):
            span[key] = _base64_id(span[key])
    return (
        _message(group.get("resource"), Resource()),
        _message(part.get("scope"), InstrumentationScope()),
        _message(span, Span()),
    )


def _message(value: Any, message: Any) -> Any:
    return json_format.ParseDict(value or {}, message, ignore_unknown_fields=True)


def _base64_id(text: str) -> str:
    """Return an id in base64, as protobuf's JSON requires; most senders write hexadecimal."""
    try:
        return base64.b64encode(binascii.unhexlify(text)).decode() if len(text) in (16, 32) else text
    except binascii.Error:
        return text
