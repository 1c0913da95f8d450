"""Convert spans of any dialect into observations, without I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from queenright.instrumentation.conventions import CONTENT_EVENTS, extract_subject, fill_template
from queenright.instrumentation.effects import get_effect_facts
from queenright.instrumentation.fingerprint import arguments_fingerprint, result_fingerprint
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import SPAN_STEP, ToolOutcome
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.verdict import Verdict
from queenright.server.telemetry.dialects import CLIENT_OF_SPANS, Fields, classify_work, read_fields
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.tool_calls import add_unreported_failure
from queenright.server.telemetry.unusable import RecordFault, UnusableRecordError
from queenright.server.telemetry.values import (
    MAX_ATTRIBUTES,
    NO_CONTENT,
    NO_SPAN,
    compute_duration,
    is_true,
    is_truncated,
    parse_count,
    parse_span_id,
    read_content,
    read_count,
    read_text,
)

UNNAMED_TOOL: Final = "unknown"
NO_TRACE: Final = bytes(16)

_SPAN_ID_PATTERN: Final = re.compile("[0-9a-fA-F]{16}")
_LANGCHAIN_AGENT_PATTERN: Final = re.compile(r'"lc_agent_name": ?"([^"\\]{1,200})"')
_AGENT_METHOD_PATTERN: Final = re.compile(r"(.{1,200})\._\w{1,100}")
"""Matches the name of an agent's span with an inner method: the agent, then the method."""
_PRIVATE_METHOD_PATTERN: Final = re.compile(r".{1,200}\._[^\W_]\w{0,100}")
"""Matches the name of a span for a private method of an agent."""
_MAX_METADATA_LENGTH: Final = 16_384
_REMOTE_PARENT_FLAG: Final = 0x200
_ERROR_STATUS: Final = Status.STATUS_CODE_ERROR
_ENTRY_KINDS: Final = frozenset({Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CONSUMER})
_VERDICTS: Final = frozenset(Verdict)
_NO_ERROR_TEXTS: Final = frozenset({"", "false", "none", "null", "0"})
_EXCEPTION_EVENT: Final = "exception"
_EXCEPTION_TYPE: Final = "exception.type"
_EXCEPTION_MESSAGE: Final = "exception.message"


def read_span(span: Span, process: Process, scope: InstrumentationScope, now: float) -> Observation | None:
    """
    Return the observation of a span, or None if it is not an agent's work.

    Raises:
        UnusableRecordError: The span is not valid. The message is for the sender.
    """
    trace_id, span_id = span.trace_id, span.span_id
    if len(trace_id) != 16 or len(span_id) != 8 or trace_id == NO_TRACE or span_id == NO_SPAN:
        raise UnusableRecordError(
            RecordFault.INVALID_ID,
            "a span without a valid trace id and span id "
            f"(they have {len(trace_id)} and {len(span_id)} bytes)",
        )
    attributes = span.attributes
    if len(attributes) > MAX_ATTRIBUTES:
        raise UnusableRecordError(
            RecordFault.TOO_LARGE, f"a span with {len(attributes)} attributes, more than {MAX_ATTRIBUTES}"
        )
    fields = read_fields(attributes)
    name, parent_id, flags, end = span.name, span.parent_span_id, span.flags, span.end_time_unix_nano
    if "pending_parent" in fields and _SPAN_ID_PATTERN.fullmatch(
        pending_parent := read_text(fields["pending_parent"])
    ):
        # A pending span represents its open parent.
        if len(parent_id) != 8:
            raise UnusableRecordError(RecordFault.INVALID_ID, "a pending span without a valid parent span id")
        span_id, parent_id, flags, end = parent_id, parse_span_id(pending_parent), 0, 0
    text = process.read_text
    incarnation = text(fields["incarnation"]) if "incarnation" in fields else ""
    is_own = "incarnation" in fields or process.is_own
    client = CLIENT_OF_SPANS.get(scope.name)
    if client is not None and client.spans is not None:
        kind = client.spans.get(name)
    elif is_own and "operation" not in fields and _is_step(fields, name):
        kind = ObservationKind.STEP
    else:
        if "{" in name:
            name = fill_template(name, lambda key: _read_attribute_text(span, key))
        kind = _find_kind(fields, name)
        if kind is ObservationKind.TOOL and span.kind in _ENTRY_KINDS:
            kind = None  # the caller also has a span for this call
        elif kind is ObservationKind.LLM and _is_preparation(span, fields):
            kind = None
    # The span has no parent or a remote parent, or is an entry point.
    is_outermost = not parent_id or bool(flags & _REMOTE_PARENT_FLAG) or span.kind in _ENTRY_KINDS
    if kind is None and (client is not None or not is_outermost):
        return None
    events = span.events
    observation = Observation(
        identity=trace_id + span_id if end else b"begun" + trace_id + span_id,
        process=process,
        kind=kind,
        start=span.start_time_unix_nano,
        end=end,
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        is_outermost=is_outermost,
        is_own=is_own,
        agent=text(fields["agent"]) if "agent" in fields else _find_langchain_agent(fields, process),
        session=text(fields["session"]) if "session" in fields else "",
        incarnation=incarnation,
        graph=text(fields["graph"]) if "graph" in fields else "",
        node=text(fields["node"]) if "node" in fields else "",
        library=scope.name,
        version=scope.version,
        data=_find_failure(span, kind, events, fields),
    )
    if kind is not None:
        if events and kind is ObservationKind.TOOL:
            _add_content(events, fields)
        _READERS[kind](observation, name, fields)
    if client is not None:
        observation.client, observation.source = client.name, "span"
        observation.library, observation.version = client.name, process.version
        observation.call = observation.data.get("call_id", "")
        if "succeeded" in fields and not is_true(fields["succeeded"]):
            observation.data.setdefault("error_type", "error")
    return observation


def _find_langchain_agent(fields: Fields, process: Process) -> str:
    """Return the agent in LangChain's JSON metadata of a span, or ""."""
    if "metadata" not in fields:
        return ""
    match = _LANGCHAIN_AGENT_PATTERN.search(fields["metadata"].string_value, 0, _MAX_METADATA_LENGTH)
    return process.read_text(AnyValue(string_value=match[1])) if match else ""


def _parse_object(value: AnyValue) -> dict[str, Any]:
    """Parse a JSON object. Return {} for other text."""
    try:
        metadata = orjson.loads(value.string_value[:_MAX_METADATA_LENGTH])
    except orjson.JSONDecodeError:
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _read_agent(observation: Observation, name: str, fields: Fields) -> None:
    method = _AGENT_METHOD_PATTERN.fullmatch(name)
    observation.name = read_text(fields.get("entity")) or clean_name(
        method[1] if method else extract_subject(name)
    )
    if "waiting_reason" in fields:
        observation.data["waiting_reason"] = read_text(fields["waiting_reason"])


def _read_step(observation: Observation, name: str, fields: Fields) -> None:
    data = observation.data
    verdict = fields.get("verdict")
    if verdict is not None and verdict.string_value in _VERDICTS:
        data["verdict"] = verdict.string_value
    if "index" in fields:
        data["index"] = read_count(fields["index"])
    if "feedback" in fields:
        data["text"] = redact(fields["feedback"].string_value)
    _add_duration(observation)


def _read_llm(observation: Observation, name: str, fields: Fields) -> None:
    data = observation.data
    _add_duration(observation)
    for field in ("model", "provider"):
        if field in fields:
            data[field] = observation.process.read_text(fields[field])
    if "finish_reasons" in fields and is_truncated(fields["finish_reasons"]):
        data["truncated"] = True
    if "response_id" in fields:
        observation.call = read_text(fields["response_id"])
    if "arguments" in fields:
        observation.request_messages = fields["arguments"].string_value
    if "result" in fields:
        observation.response_messages = fields["result"].string_value
    usage = _parse_object(fields["usage"]) if "usage" in fields else {}
    for field in ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"):
        if field in fields:
            data[field] = read_count(fields[field])
        elif field in usage:
            data[field] = parse_count(usage[field])


def _read_tool(observation: Observation, name: str, fields: Fields) -> None:
    data = observation.data
    if observation.end:
        data["outcome"] = determine_tool_outcome(data)
    attribute = fields.get("tool") or fields.get("entity")
    data["tool"] = read_text(attribute) or clean_name(extract_subject(name)) or UNNAMED_TOOL
    if "call_id" in fields:
        data["call_id"] = read_text(fields["call_id"])
    if not observation.end:
        return
    arguments, result = read_content(fields.get("arguments")), read_content(fields.get("result"))
    data["args_hash"] = read_text(fields.get("arguments_hash")) or _hash_arguments(arguments)
    if "effect" in fields:
        data["effect"] = read_text(fields["effect"])
    else:
        data |= get_effect_facts(data["tool"], arguments)
    add_unreported_failure(data, result, arguments)
    has_failed = data["outcome"] != ToolOutcome.OK.value
    data["result_hash"] = read_text(fields.get("result_hash")) or None
    if data["result_hash"] is None and result is not None:
        data["result_hash"] = result_fingerprint(result, arguments, has_failed=has_failed)
    if data["result_hash"] == NO_CONTENT and data["args_hash"] in (None, NO_CONTENT):
        data["result_hash"] = None
    if data["result_hash"] is None and "error_type" in data:
        # A repeated failure counts as a repeated result.
        text = f"{data['error_type']}: {data.get('error', '')}"
        data["result_hash"] = result_fingerprint(text, arguments, has_failed=True)
    if data["args_hash"] == NO_CONTENT and data["result_hash"] is None:
        data["args_hash"] = None  # no content of the call was recorded
    _add_duration(observation)


def _hash_arguments(content: Any) -> str | None:
    return None if content is None else arguments_fingerprint(content)


def _add_duration(observation: Observation) -> None:
    if observation.end:
        observation.data["duration"] = compute_duration(observation.start, observation.end)


def _read_note(observation: Observation, name: str, fields: Fields) -> None:
    if "call_id" in fields:
        observation.data["call_id"] = read_text(fields["call_id"])


def _read_nothing(observation: Observation, name: str, fields: Fields) -> None:
    pass


_READERS: Final = {
    ObservationKind.AGENT: _read_agent,
    ObservationKind.STEP: _read_step,
    ObservationKind.LLM: _read_llm,
    ObservationKind.TOOL: _read_tool,
    ObservationKind.TURN: _read_nothing,
    ObservationKind.NOTE: _read_note,
}


def _find_kind(fields: Fields, name: str) -> ObservationKind | None:
    operation = fields.get("operation")
    if operation is not None:
        return classify_work(operation.string_value, "", name)
    marker = fields.get("marker")
    return classify_work("", "" if marker is None else read_text(marker), name)


def _is_step(fields: Fields, name: str) -> bool:
    """Return whether a span of Queenright's instrumentation without an operation is a step."""
    return "index" in fields or "verdict" in fields or name == SPAN_STEP or name.startswith(f"{SPAN_STEP} ")


def _find_failure(
    span: Span, kind: ObservationKind | None, events: Sequence[Span.Event], fields: Fields
) -> dict[str, Any]:
    """Return ``error_type`` and ``error`` of a failed span, otherwise an empty dict."""
    error_type = read_text(fields["error_type"]) if "error_type" in fields else ""
    message = _read_error_message(fields["error"]) if "error" in fields else ""
    exception = None
    if events:
        last_events = islice(reversed(events), MAX_ATTRIBUTES)
        exception = next((event for event in last_events if event.name == _EXCEPTION_EVENT), None)
    # A model call with output was retried after the exception.
    has_failed = exception is not None and not (kind is ObservationKind.LLM and "output_tokens" in fields)
    if span.status.code != _ERROR_STATUS and not error_type and not message and not has_failed:
        return {}
    message = span.status.message or message
    if exception is not None:
        texts = {a.key: a.value.string_value for a in islice(exception.attributes, MAX_ATTRIBUTES)}
        error_type = error_type or clean_name(texts.get(_EXCEPTION_TYPE, ""))
        message = texts.get(_EXCEPTION_MESSAGE) or message
    failure: dict[str, Any] = {"error_type": error_type or "error"}
    if message:
        failure["error"] = redact(message)
    return failure


def _is_preparation(span: Span, fields: Fields) -> bool:
    """Return whether a span marked as a model call is only preparation, without a model response."""
    return (
        _PRIVATE_METHOD_PATTERN.fullmatch(span.name) is not None
        and not ("input_tokens" in fields or "output_tokens" in fields)
        and span.status.code != _ERROR_STATUS
    )


def _read_error_message(value: AnyValue) -> str:
    """Return the error message in an attribute; "" if it means no error."""
    if value.WhichOneof("value") == "string_value":
        text = value.string_value.strip()
        return "" if text.lower() in _NO_ERROR_TEXTS else text
    return "error" if is_true(value) else ""


def _read_attribute_text(span: Span, key: str) -> str:
    """Return an attribute of a span as text, or ""."""
    return next((read_text(attribute.value) for attribute in span.attributes if attribute.key == key), "")


def _add_content(events: Sequence[Span.Event], fields: Fields) -> None:
    """Add arguments and results that are recorded as span events."""
    for event in islice(events, MAX_ATTRIBUTES):
        for field, keys in CONTENT_EVENTS.get(event.name, ()):
            if field not in fields:
                values = {each.key: each.value for each in islice(event.attributes, MAX_ATTRIBUTES)}
                value = next((values[key] for key in keys if key in values), None)
                if value is not None:
                    fields[field] = value


def determine_tool_outcome(failure: dict[str, Any]) -> str:
    """Return the outcome of a tool call."""
    if "error_type" not in failure:
        return ToolOutcome.OK.value
    if "timeout" in failure["error_type"].lower():
        return ToolOutcome.TIMEOUT.value
    return ToolOutcome.ERROR.value
