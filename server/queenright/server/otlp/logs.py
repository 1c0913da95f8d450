"""Log records into events: what a worker of our own instrumentation says while something is open. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from queenright.instrumentation import names
from queenright.instrumentation.identity import clean_name
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.otlp.attribution import Source
from queenright.server.otlp.batch import Decoded, Memory
from queenright.server.otlp.spans import UNNAMED_TOOL
from queenright.server.otlp.values import (
    MAX_ATTRIBUTES,
    Fields,
    count_of,
    fields_of,
    is_true,
    moment_of,
    number_of,
    seconds_of,
    text_of,
)

_WAITING: Final = frozenset(names.WaitingReason)


def _started(found: Fields, scope: InstrumentationScope, _: float) -> dict[str, Any]:
    return _present(
        start_records=True,
        framework=text_of(found.get("framework")) or clean_name(scope.name),
        version=text_of(found.get("version")) or clean_name(scope.version),
        heartbeat_interval=number_of(found.get("heartbeat_interval")),
        task_id=text_of(found.get("task")),
        repeatable=True if is_true(found.get("repeatable")) else None,
        control=True if is_true(found.get("control")) else None,
    )


def _step_started(found: Fields, _: InstrumentationScope, __: float) -> dict[str, Any]:
    return _present(index=count_of(found.get("index")))


def _llm_started(found: Fields, _: InstrumentationScope, __: float) -> dict[str, Any]:
    return _present(model=text_of(found.get("model")), provider=text_of(found.get("provider")))


def _tool_started(found: Fields, _: InstrumentationScope, __: float) -> dict[str, Any]:
    return _present(
        tool=text_of(found.get("tool")) or UNNAMED_TOOL,
        call_id=text_of(found.get("call_id")),
        timeout=number_of(found.get("timeout")),
    )


def _heartbeat(found: Fields, _: InstrumentationScope, now: float) -> dict[str, Any]:
    return _present(
        interval=number_of(found.get("heartbeat_interval")),
        phase=text_of(found.get("phase")),
        last_tool_call=moment_of(found.get("last_tool_call"), now),
        token_count=count_of(found.get("token_count")),
        error_count=count_of(found.get("error_count")),
        progress_indicator=text_of(found.get("progress")),
        task_id=text_of(found.get("task")),
    )


def _waiting(found: Fields, _: InstrumentationScope, __: float) -> dict[str, Any]:
    reason = text_of(found.get("waiting_reason"))
    return {"reason": reason if reason in _WAITING else None}


def _checkpoint(found: Fields, _: InstrumentationScope, __: float) -> dict[str, Any]:
    return _present(checkpoint_id=text_of(found.get("checkpoint")))


def _output(found: Fields, _: InstrumentationScope, __: float) -> dict[str, Any]:
    counts = ("files_changed", "tests_passed", "tests_failed")
    return _present(**{key: count_of(found.get(key)) for key in counts})


def _nothing(_: Fields, __: InstrumentationScope, ___: float) -> dict[str, Any]:
    return {}


Reader = Callable[[Fields, InstrumentationScope, float], dict[str, Any]]
"""Of the attributes, whose they are, and the time of arrival."""

RECORDS: Final[Mapping[str, tuple[EventType, Reader]]] = {
    names.EVENT_AGENT_STARTED: (EventType.EXECUTION_STARTED, _started),
    names.EVENT_STEP_STARTED: (EventType.STEP_STARTED, _step_started),
    names.EVENT_LLM_STARTED: (EventType.LLM_CALL_STARTED, _llm_started),
    names.EVENT_LLM_DELTA: (EventType.LLM_TEXT_DELTA, _nothing),
    names.EVENT_TOOL_STARTED: (EventType.TOOL_CALL_STARTED, _tool_started),
    names.EVENT_HEARTBEAT: (EventType.AGENT_HEARTBEAT, _heartbeat),
    names.EVENT_WAITING: (EventType.WORKER_WAITING, _waiting),
    names.EVENT_CHECKPOINT: (EventType.CHECKPOINT_SAVED, _checkpoint),
    names.EVENT_OUTPUT: (EventType.OUTPUT_REPORTED, _output),
}
"""The records that mean something; any other is ignored and counted."""


def decode_logs(request: ExportLogsServiceRequest, memory: Memory, now: float) -> Decoded:
    """
    Return the events that the records of one request stand for.

    Raises:
        StillStoring: A record of the request is being stored by another request.
    """
    decoded = Decoded()
    for _ in decoding_logs(request, memory, now, decoded):
        pass
    return decoded


def decoding_logs(
    request: ExportLogsServiceRequest, memory: Memory, now: float, decoded: Decoded
) -> Iterator[None]:
    """Decode as `decode_logs` does, pausing after each record and each group."""
    for resource_logs in request.resource_logs:
        decoded.count_group()
        source = Source.of(resource_logs.resource)
        for scope_logs in resource_logs.scope_logs:
            decoded.count_group()
            decoded.count_items(len(scope_logs.log_records))
            yield
            for record in scope_logs.log_records:
                _add(decoded, memory, source, scope_logs.scope, record, now)
                yield
        yield
    decoded.finish()


def _add(
    decoded: Decoded,
    memory: Memory,
    source: Source,
    scope: InstrumentationScope,
    record: LogRecord,
    now: float,
) -> None:
    if len(record.attributes) > MAX_ATTRIBUTES:
        decoded.reject(f"a record with more than {MAX_ATTRIBUTES} attributes")
        return
    found = fields_of(record.attributes)
    event_name = record.event_name or text_of(found.get("event"))
    known = RECORDS.get(event_name)
    if known is None:
        decoded.ignored += 1
        return
    agent = text_of(found.get("agent")) or source.agent
    session = text_of(found.get("session"))
    if not agent or not session:
        missing = names.GEN_AI_CONVERSATION_ID if agent else names.GEN_AI_AGENT_NAME
        decoded.reject(f"a {event_name} record without {missing}")
        return
    incarnation = text_of(found.get("incarnation")) or source.incarnation_id
    trace_id, span_id = record.trace_id, record.span_id
    time = record.time_unix_nano or record.observed_time_unix_nano
    identity = f"{event_name}\n{agent}\n{session}\n{time}\n".encode() + span_id[:8]
    if identity in decoded.spans or memory.duplicates.seen(identity):
        decoded.ignored += 1
        return
    decoded.spans.add(identity)
    if len(trace_id) == 16:
        # Spans without a name in this trace (a model client's, say) are this worker's.
        memory.attribution.trace(trace_id, source).own(agent, session, incarnation)
    type_, read = known
    decoded.accepted += 1
    decoded.events.append(
        AgentEvent(
            type=type_,
            time=seconds_of(time, now),
            agent_id=agent,
            session_id=session,
            incarnation_id=incarnation,
            graph_id=text_of(found.get("graph")),
            node_id=text_of(found.get("node")),
            trace_id=trace_id.hex() if len(trace_id) == 16 else "",
            span_id=span_id.hex() if len(span_id) == 8 else "",
            data=read(found, scope, now),
            id="",
        )
    )


def _present(**values: Any) -> dict[str, Any]:
    """Return what is known of the values."""
    return {key: value for key, value in values.items() if value is not None and value != ""}
