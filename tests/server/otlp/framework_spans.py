"""Builders of spans as frameworks send them, and functions that decode these spans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.otlp.decode import decode_spans
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.batch import Batch

NOW = 1_800_000_000.0
TRACE = bytes.fromhex("5b8efff798038103d269b633813fc60c")


def make_any_value(content: Any) -> AnyValue:
    if isinstance(content, str):
        return AnyValue(string_value=content)
    if isinstance(content, float):
        return AnyValue(double_value=content)
    return AnyValue(int_value=content)


def make_request(
    *spans: dict[str, Any], service: str = "svc", scope: str = "framework", **resource: str
) -> ExportTraceServiceRequest:
    """Return a request. Its spans are one second apart unless they give their times."""
    message = ExportTraceServiceRequest()
    group = message.resource_spans.add()
    for key, content in {
        "service.name": service,
        **{
            resource_key.replace("_", "."): resource_value
            for resource_key, resource_value in resource.items()
        },
    }.items():
        group.resource.attributes.append(KeyValue(key=key, value=make_any_value(content)))
    scopes: dict[str, ScopeSpans] = {}
    for index, fields in enumerate(spans):
        name = fields.get("scope", scope)
        if name not in scopes:
            scopes[name] = group.scope_spans.add()
            scopes[name].scope.name = name
        span = scopes[name].spans.add(
            trace_id=fields.get("trace", TRACE),
            span_id=fields["id"].to_bytes(8, "big"),
            parent_span_id=fields["parent"].to_bytes(8, "big") if "parent" in fields else b"",
            name=fields["name"],
            flags=fields.get("flags", 0x100),
            start_time_unix_nano=int((NOW - 100 + fields.get("start", index - 0.5)) * 1e9),
            end_time_unix_nano=int((NOW - 100 + fields.get("end", index)) * 1e9),
        )
        span.kind = fields.get("kind") or Span.SPAN_KIND_INTERNAL
        for key, content in fields.get("attributes", {}).items():
            span.attributes.append(KeyValue(key=key, value=make_any_value(content)))
        for event, event_attributes in fields.get("events", ()):
            span_event = span.events.add(name=event)
            span_event.attributes.extend(
                KeyValue(key=key, value=make_any_value(content)) for key, content in event_attributes.items()
            )
        if "error" in fields:
            span.status.code = Status.STATUS_CODE_ERROR
            span.status.message = fields["error"]
    return message


def decode(*spans: dict[str, Any], memory: Assembler | None = None, **resource: str) -> Batch:
    memory = memory or Assembler()
    batch = decode_spans(make_request(*spans, **resource), memory, NOW)
    memory.duplicates.finish_storing(batch.identities, is_stored=True)
    return batch


def get_event(decoded: Batch, type_: str) -> AgentEvent:
    [event] = [event for event in decoded.events if event.type == type_]
    return event


def list_workers(events: Iterable[AgentEvent]) -> set[tuple[str, str]]:
    """Return the agent id and session id of each worker in the events, after renames."""
    keys = dict[tuple[str, str], None]()
    for event in events:
        key = event.agent_id, event.session_id
        if event.type is EventType.AGENT_RENAMED:
            keys.pop(key, None)
            key = event.data["agent_id"], event.data["session_id"]
        keys[key] = None
    return set(keys)


def chat_span(id_: int, parent: int, **fields: Any) -> dict[str, Any]:
    attributes = {"gen_ai.operation.name": "chat", **fields.pop("attributes", {})}
    return {"id": id_, "parent": parent, "name": "chat m", "attributes": attributes, **fields}


def tool_span(id_: int, parent: int, **fields: Any) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        **fields.pop("attributes", {}),
    }
    return {"id": id_, "parent": parent, "name": "execute_tool search", "attributes": attributes, **fields}


def agent_span(id_: int, agent: str, **fields: Any) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": agent,
        **fields.pop("attributes", {}),
    }
    return {"id": id_, "name": f"invoke_agent {agent}", "attributes": attributes, **fields}


NAMED_FIELDS: dict[str, Any] = {"attributes": {"gen_ai.agent.name": "scout", "gen_ai.conversation.id": "c-1"}}
OPEN_FIELDS: dict[str, Any] = {"end": 100 - NOW}
