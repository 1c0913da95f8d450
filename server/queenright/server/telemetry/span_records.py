"""Span records: log records of `queenright.instrumentation.watch_spans` about open spans of any library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from queenright.instrumentation import names
from queenright.instrumentation.names import SpanOutcome
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.spans import UNNAMED_TOOL, determine_tool_outcome
from queenright.server.telemetry.values import compute_duration, parse_span_id, read_number, read_text

SPAN_EVENTS: Final = frozenset({names.EVENT_SPAN_STARTED, names.EVENT_SPAN_OPEN, names.EVENT_SPAN_ENDED})

_SPAN_KINDS: Final[Mapping[str, ObservationKind]] = {
    kind.value: kind for kind in (ObservationKind.AGENT, ObservationKind.LLM, ObservationKind.TOOL)
}
_OUTCOMES: Final[Mapping[str, SpanOutcome]] = {outcome.value: outcome for outcome in SpanOutcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """The fields of a record. Times are in nanoseconds since the epoch; missing names and ids are ""."""

    event: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    kind: ObservationKind | None
    """None if no attribute shows the kind of the span yet."""
    name: str
    """The span's name."""
    scope: str
    start: int
    time: int
    """The time of the start, the heartbeat or the end."""
    report_interval: float | None
    """Seconds between two heartbeats."""
    outcome: SpanOutcome | None
    """None while the span is open."""
    agent: str
    session: str
    tool: str
    call_id: str
    model: str
    provider: str
    error_type: str


def read_span_record(record: LogRecord) -> SpanRecord | None:
    """Parse a span record. Return None for another record, or for one without a span id."""
    if record.event_name not in SPAN_EVENTS or len(record.trace_id) != 16 or len(record.span_id) != 8:
        return None
    attributes: dict[str, AnyValue] = {attribute.key: attribute.value for attribute in record.attributes}
    time = record.time_unix_nano or record.observed_time_unix_nano
    start = attributes.get(names.OPEN_SPAN_START)
    outcome = _OUTCOMES.get(read_text(attributes.get(names.OPEN_SPAN_OUTCOME)), SpanOutcome.UNKNOWN)
    return SpanRecord(
        event=record.event_name,
        trace_id=record.trace_id,
        span_id=record.span_id,
        parent_id=parse_span_id(read_text(attributes.get(names.OPEN_SPAN_PARENT_ID))),
        kind=_SPAN_KINDS.get(read_text(attributes.get(names.OPEN_SPAN_KIND))),
        name=read_text(attributes.get(names.OPEN_SPAN_NAME)),
        scope=read_text(attributes.get(names.OPEN_SPAN_SCOPE)),
        start=max(0, start.int_value if start is not None else 0) or time,
        time=time,
        report_interval=read_number(attributes.get(names.HEARTBEAT_INTERVAL)),
        outcome=outcome if record.event_name == names.EVENT_SPAN_ENDED else None,
        agent=read_text(attributes.get(names.GEN_AI_AGENT_NAME)),
        session=read_text(attributes.get(names.GEN_AI_CONVERSATION_ID)),
        tool=read_text(attributes.get(names.GEN_AI_TOOL_NAME)),
        call_id=read_text(attributes.get(names.GEN_AI_TOOL_CALL_ID)),
        model=read_text(attributes.get(names.GEN_AI_REQUEST_MODEL)),
        provider=read_text(attributes.get(names.GEN_AI_PROVIDER_NAME)),
        error_type=read_text(attributes.get(names.ERROR_TYPE)),
    )


def to_observation(record: SpanRecord, process: Process) -> Observation | None:
    """
    Return the start or end of a span's work; None if its kind is still unknown.

    The span itself also reports its end, with the result. The end in the record is used only if the span is
    lost.
    """
    if record.kind is None:
        return None
    has_ended = record.outcome is not None
    data: dict[str, Any] = {
        "tool": record.tool,
        "call_id": record.call_id,
        "model": record.model,
        "provider": record.provider,
    }
    if record.kind is ObservationKind.TOOL:
        data["tool"] = record.tool or UNNAMED_TOOL
    if has_ended:
        data["duration"] = compute_duration(record.start, record.time)
        if record.outcome is SpanOutcome.ERROR:
            data["error_type"] = record.error_type or "error"
        if record.kind is ObservationKind.TOOL:
            data["outcome"] = determine_tool_outcome(data)
    span = record.trace_id + record.span_id
    return Observation(
        identity=span if has_ended else b"begun" + span,
        process=process,
        kind=record.kind,
        start=record.start,
        end=record.time if has_ended else 0,
        is_outermost=has_ended and not record.parent_id,
        report_interval=None if has_ended or not record.report_interval else max(1.0, record.report_interval),
        awaits_span=has_ended,
        trace_id=record.trace_id,
        span_id=record.span_id,
        parent_id=record.parent_id,
        is_own=process.is_own,
        agent=record.agent,
        session=record.session,
        library=record.scope,
        data={key: value for key, value in data.items() if value or key == "duration"},
    )
