"""Many agents that repeat one call with one result."""

from __future__ import annotations

import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from queenright.instrumentation import names

_STEPS = 10
_NANO = 1_000_000_000


def build_crowd_request(agents: range) -> bytes:
    """Return an OTLP request with the spans of agents that repeat one call and get RETRY each time."""
    request = ExportTraceServiceRequest()
    now = int(time.time() * _NANO)
    for agent in agents:
        resource = request.resource_spans.add()
        resource.resource.attributes.append(_text_attribute(names.SERVICE_NAME, "crowd"))
        spans = resource.scope_spans.add().spans
        for step in range(_STEPS):
            start = now - (_STEPS - step) * 20 * _NANO
            agent_attributes = [
                _text_attribute(names.GEN_AI_AGENT_NAME, f"agent-{agent:04}"),
                _text_attribute(names.GEN_AI_CONVERSATION_ID, f"session-{agent:04}"),
                _text_attribute(names.INCARNATION_ID, f"life-{agent:04}"),
                _text_attribute(names.NODE_ID, "search"),
            ]
            step_id = (agent * 1000 + step * 2 + 1).to_bytes(8, "big")
            tool_span = Span(
                name="execute_tool search",
                trace_id=(agent + 1).to_bytes(16, "big"),
                span_id=(agent * 1000 + step * 2 + 2).to_bytes(8, "big"),
                parent_span_id=step_id,
                start_time_unix_nano=start,
                end_time_unix_nano=start + _NANO,
            )
            tool_span.attributes.extend(agent_attributes)
            tool_span.attributes.extend(
                [
                    _text_attribute(names.GEN_AI_OPERATION_NAME, "execute_tool"),
                    _text_attribute(names.GEN_AI_TOOL_NAME, "search"),
                    _text_attribute(names.GEN_AI_TOOL_CALL_ID, f"call-{agent}-{step}"),
                    _text_attribute(names.TOOL_ARGUMENTS_HASH, "a" * 16),
                    _text_attribute(names.TOOL_RESULT_HASH, "b" * 16),
                ]
            )
            step_span = Span(
                name="step search",
                trace_id=(agent + 1).to_bytes(16, "big"),
                span_id=step_id,
                start_time_unix_nano=start,
                end_time_unix_nano=start + 2 * _NANO,
            )
            step_span.attributes.extend(agent_attributes)
            step_span.attributes.append(_text_attribute(names.STEP_VERDICT, "RETRY"))
            step_span.attributes.append(KeyValue(key=names.STEP_INDEX, value=AnyValue(int_value=step)))
            spans.extend([tool_span, step_span])
    return request.SerializeToString()


def _text_attribute(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))
