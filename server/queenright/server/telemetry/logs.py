"""Convert log records of Queenright's instrumentation and of coding agents into observations, without I/O."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from queenright.instrumentation import names
from queenright.instrumentation.identity import clean_name
from queenright.server.http.json_limits import JsonFormatError, JsonSizeError, check_json_size
from queenright.server.telemetry.dialects import ATTRIBUTES, CLIENT_OF_LOGS, Fields, read_fields
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process, make_origin
from queenright.server.telemetry.span_records import read_span_record, to_observation
from queenright.server.telemetry.spans import UNNAMED_TOOL, read_span
from queenright.server.telemetry.unusable import RecordFault, UnusableRecordError
from queenright.server.telemetry.values import (
    MAX_ATTRIBUTES,
    is_true,
    read_count,
    read_number,
    read_text,
    read_timestamp,
    to_json_value,
)

_WAITING_REASONS: Final = frozenset(names.WaitingReason)


def read_log(
    record: LogRecord, process: Process, scope: InstrumentationScope, now: float
) -> Observation | None:
    """
    Return the observation of a log record, or None if it has none. ``now`` is its arrival time.

    Raises:
        UnusableRecordError: A required attribute is missing. The message is for the sender.
    """
    if len(record.attributes) > MAX_ATTRIBUTES:
        raise UnusableRecordError(
            RecordFault.TOO_LARGE,
            f"a record with {len(record.attributes)} attributes, more than {MAX_ATTRIBUTES}",
        )
    if (span := read_span_record(record)) is not None:
        return to_observation(span, process)
    client = CLIENT_OF_LOGS.get(scope.name)
    if client is not None:
        attributes = {
            # Nearly all values are strings.
            attribute.key: attribute.value.string_value or to_json_value(attribute.value)
            for attribute in record.attributes
        }
        time = record.time_unix_nano or record.observed_time_unix_nano or int(now * 1e9)
        observation = client.read_log(attributes, process, time)
        if observation is not None and not process.user:
            observation.user = process.clean_id(attributes.get("user.email"))
        return observation
    fields = read_fields(record.attributes)
    if "partial_event" in fields:
        return read_partial_span(read_text(fields["partial_event"]), record.body, now)
    event_name = record.event_name or read_text(fields.get("event"))
    reader = RECORD_READERS.get(event_name)
    if reader is None:
        return None
    agent = read_text(fields.get("agent")) or process.agent
    session = read_text(fields.get("session"))
    if not agent or not session:
        fault = RecordFault.NO_SESSION if agent else RecordFault.NO_NAME
        missing_name = names.GEN_AI_CONVERSATION_ID if agent else names.GEN_AI_AGENT_NAME
        raise UnusableRecordError(fault, f"a {event_name} record without {missing_name}")
    kind, read = reader
    trace_id, span_id = record.trace_id, record.span_id
    time = record.time_unix_nano or record.observed_time_unix_nano
    data = read(fields, now)
    if kind is ObservationKind.AGENT:
        data = _drop_empty(framework=clean_name(scope.name), version=clean_name(scope.version)) | data
        data |= make_origin(process.user, process.repository)
    return Observation(
        identity=f"{event_name}\n{agent}\n{session}\n{time}\n".encode() + span_id[:8],
        process=process,
        kind=kind,
        start=time,
        end=0,
        trace_id=trace_id if len(trace_id) == 16 else b"",
        span_id=span_id if len(span_id) == 8 else b"",
        is_own=True,
        agent=agent,
        session=session,
        incarnation=read_text(fields.get("incarnation")),
        graph=read_text(fields.get("graph")),
        node=read_text(fields.get("node")),
        library=scope.name,
        version=scope.version,
        data=data,
    )


def _read_start(fields: Fields, now: float) -> dict[str, Any]:
    return _drop_empty(
        start_records=True,
        framework=read_text(fields.get("framework")),
        version=read_text(fields.get("version")),
        heartbeat_interval=read_number(fields.get("heartbeat_interval")),
        task_id=read_text(fields.get("task")),
        repeatable=True if is_true(fields.get("repeatable")) else None,
        control=True if is_true(fields.get("control")) else None,
        metrics_served=True if is_true(fields.get("metrics_served")) else None,
    )


def _read_step_start(fields: Fields, now: float) -> dict[str, Any]:
    return _drop_empty(index=read_count(fields.get("index")))


def _read_llm_start(fields: Fields, now: float) -> dict[str, Any]:
    return _drop_empty(model=read_text(fields.get("model")), provider=read_text(fields.get("provider")))


def _read_tool_start(fields: Fields, now: float) -> dict[str, Any]:
    return _drop_empty(
        tool=read_text(fields.get("tool")) or UNNAMED_TOOL,
        call_id=read_text(fields.get("call_id")),
        timeout=read_number(fields.get("timeout")),
    )


def _read_heartbeat(fields: Fields, now: float) -> dict[str, Any]:
    return _drop_empty(
        interval=read_number(fields.get("heartbeat_interval")),
        phase=read_text(fields.get("phase")),
        last_tool_call=read_timestamp(fields.get("last_tool_call"), now),
        token_count=read_count(fields.get("token_count")),
        error_count=read_count(fields.get("error_count")),
        progress_indicator=read_text(fields.get("progress")),
        task_id=read_text(fields.get("task")),
    )


def _read_waiting(fields: Fields, now: float) -> dict[str, Any]:
    reason = read_text(fields.get("waiting_reason"))
    return {"reason": reason if reason in _WAITING_REASONS else None}


def _read_checkpoint(fields: Fields, now: float) -> dict[str, Any]:
    return _drop_empty(checkpoint_id=read_text(fields.get("checkpoint")))


def _read_output(fields: Fields, now: float) -> dict[str, Any]:
    counts = ("files_changed", "tests_passed", "tests_failed")
    return _drop_empty(**{key: read_count(fields.get(key)) for key in counts})


def _read_resource(fields: Fields, now: float) -> dict[str, Any]:
    return _drop_empty(
        resource=read_text(fields.get("resource")),
        used=read_number(fields.get("resource_used")),
        limit=read_number(fields.get("resource_limit")),
    )


def _read_breaker(fields: Fields, now: float) -> dict[str, Any]:
    return _drop_empty(name=read_text(fields.get("breaker")), to=read_text(fields.get("breaker_state")))


def _read_nothing(fields: Fields, now: float) -> dict[str, Any]:
    return {}


Reader = Callable[[Fields, float], dict[str, Any]]
"""Reads data from the attributes and the arrival time."""

RECORD_READERS: Final[Mapping[str, tuple[ObservationKind, Reader]]] = {
    names.EVENT_AGENT_STARTED: (ObservationKind.AGENT, _read_start),
    names.EVENT_STEP_STARTED: (ObservationKind.STEP, _read_step_start),
    names.EVENT_LLM_STARTED: (ObservationKind.LLM, _read_llm_start),
    names.EVENT_LLM_DELTA: (ObservationKind.TEXT, _read_nothing),
    names.EVENT_TOOL_STARTED: (ObservationKind.TOOL, _read_tool_start),
    names.EVENT_HEARTBEAT: (ObservationKind.HEARTBEAT, _read_heartbeat),
    names.EVENT_WAITING: (ObservationKind.WAIT, _read_waiting),
    names.EVENT_CHECKPOINT: (ObservationKind.CHECKPOINT, _read_checkpoint),
    names.EVENT_OUTPUT: (ObservationKind.OUTPUT, _read_output),
    names.EVENT_RESOURCE: (ObservationKind.RESOURCE, _read_resource),
    names.EVENT_BREAKER: (ObservationKind.BREAKER, _read_breaker),
}
"""The kind and the reader of each event name."""


def _drop_empty(**values: Any) -> dict[str, Any]:
    """Drop values that are None or empty."""
    return {key: value for key, value in values.items() if value is not None and value != ""}


_MAX_BODY_LENGTH: Final = 1024 * 1024
_MAX_VALUES: Final = 20_000
_ID_KEYS: Final = ("traceId", "spanId", "parentSpanId")
_HEARTBEAT_EVENT: Final = "heartbeat"
PARTIAL_EVENT: Final = ATTRIBUTES["partial_event"][0]
"""The attribute of a record whose body is a span."""


def read_partial_span(event: str, body: AnyValue, now: float) -> Observation | None:
    """
    Return the start of the span in a record's body; None if the span has ended and will be exported.

    The body is OTLP's TracesData with one span, as JSON or base64 protobuf. The span's resource is the one in
    the body; the record's may differ.

    Raises:
        UnusableRecordError: The body is not a span. The message is for the sender.
    """
    if event != _HEARTBEAT_EVENT:
        return None
    resource, scope, span = _parse_partial_span(body)
    span.end_time_unix_nano = 0
    return read_span(span, Process.from_resource(resource), scope, now)


def read_partial_span_resource(record: LogRecord) -> Resource | None:
    """Return the resource of the span in a record's body; None if there is no span."""
    if any(attribute.key == PARTIAL_EVENT for attribute in record.attributes):
        with contextlib.suppress(UnusableRecordError):
            return _parse_partial_span(record.body)[0]
    return None


def _parse_partial_span(body: AnyValue) -> tuple[Resource, InstrumentationScope, Span]:
    text = body.string_value
    if len(text) > _MAX_BODY_LENGTH:
        raise UnusableRecordError(
            RecordFault.TOO_LARGE, f"a partial span of more than {_MAX_BODY_LENGTH} characters"
        )
    try:
        return _parse_json(text) if text.startswith("{") else _parse_protobuf(text)
    except (
        *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
        *(DecodeError, JsonFormatError, JsonSizeError, json_format.Error),
    ):
        raise UnusableRecordError(
            RecordFault.INVALID_SPAN, "a partial span whose body is not TracesData with a span"
        ) from None


def _parse_protobuf(text: str) -> tuple[Resource, InstrumentationScope, Span]:
    data = TracesData.FromString(base64.b64decode(text, validate=True))
    group = data.resource_spans[0]
    part = group.scope_spans[0]
    return group.resource, part.scope, part.spans[0]


def _parse_json(text: str) -> tuple[Resource, InstrumentationScope, Span]:
    body = text.encode()
    check_json_size(body, _MAX_VALUES)
    group = orjson.loads(body)["resourceSpans"][0]
    part = group["scopeSpans"][0]
    span = {key: value for key, value in part["spans"][0].items() if key != "links"}
    for key in _ID_KEYS:
        if span.get(key):
            span[key] = _encode_id(span[key])
    return (
        _parse_dict(group.get("resource"), Resource()),
        _parse_dict(part.get("scope"), InstrumentationScope()),
        _parse_dict(span, Span()),
    )


def _parse_dict(value: Any, message: Any) -> Any:
    return json_format.ParseDict(value or {}, message, ignore_unknown_fields=True)


def _encode_id(text: str) -> str:
    """Convert an id to base64, as protobuf's JSON requires. Most senders write hexadecimal."""
    try:
        return base64.b64encode(binascii.unhexlify(text)).decode() if len(text) in (16, 32) else text
    except binascii.Error:
        return text
