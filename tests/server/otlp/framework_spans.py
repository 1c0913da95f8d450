"""Spans of frameworks, made for tests, and what becomes of them."""

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


def value(of: Any) -> AnyValue:
    if isinstance(of, str):
        return AnyValue(string_value=of)
    if isinstance(of, float):
        return AnyValue(double_value=of)
    return AnyValue(int_value=of)


def request(
    *spans: dict[str, Any], service: str = "svc", scope: str = "framework", **resource: str
) -> ExportTraceServiceRequest:
    """Return a request whose spans end one after the other, a second apart, unless they say when."""
    made = ExportTraceServiceRequest()
    group = made.resource_spans.add()
    for key, of in {"service.name": service, **{k.replace("_", "."): v for k, v in resource.items()}}.items():
        group.resource.attributes.append(KeyValue(key=key, value=value(of)))
    scopes: dict[str, ScopeSpans] = {}
    for n, given in enumerate(spans):
        name = given.get("scope", scope)
        if name not in scopes:
            scopes[name] = group.scope_spans.add()
            scopes[name].scope.name = name
        span = scopes[name].spans.add(
            trace_id=given.get("trace", TRACE),
            span_id=given["id"].to_bytes(8, "big"),
            parent_span_id=given["parent"].to_bytes(8, "big") if "parent" in given else b"",
            name=given["name"],
            flags=given.get("flags", 0x100),
            start_time_unix_nano=int((NOW - 100 + given.get("start", n - 0.5)) * 1e9),
            end_time_unix_nano=int((NOW - 100 + given.get("end", n)) * 1e9),
        )
        span.kind = given.get("kind") or Span.SPAN_KIND_INTERNAL
        for key, of in given.get("attributes", {}).items():
            span.attributes.append(KeyValue(key=key, value=value(of)))
        for event, span_events in given.get("events", ()):
            made_event = span.events.add(name=event)
            made_event.attributes.extend(
                KeyValue(key=key, value=value(of)) for key, of in span_events.items()
            )
        if "error" in given:
            span.status.code = Status.STATUS_CODE_ERROR
            span.status.message = given["error"]
    return made


def decode(*spans: dict[str, Any], memory: Assembler | None = None, **resource: str) -> Batch:
    memory = memory or Assembler()
    batch = decode_spans(request(*spans, **resource), memory, NOW)
    memory.duplicates.finish_storing(batch.identities, is_stored=True)
    return batch


def one(decoded: Batch, type_: str) -> AgentEvent:
    [event] = [event for event in decoded.events if event.type == type_]
    return event


def workers(events: Iterable[AgentEvent]) -> set[tuple[str, str]]:
    """Return agent and session of everybody that events are about, as they are called in the end."""
    found = dict[tuple[str, str], None]()
    for event in events:
        key = event.agent_id, event.session_id
        if event.type is EventType.AGENT_RENAMED:
            found.pop(key, None)
            key = event.data["agent_id"], event.data["session_id"]
        found[key] = None
    return set(found)


def chat(id_: int, parent: int, **fields: Any) -> dict[str, Any]:
    attributes = {"gen_ai.operation.name": "chat", **fields.pop("attributes", {})}
    return {"id": id_, "parent": parent, "name": "chat m", "attributes": attributes, **fields}


def tool(id_: int, parent: int, **fields: Any) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        **fields.pop("attributes", {}),
    }
    return {"id": id_, "parent": parent, "name": "execute_tool search", "attributes": attributes, **fields}


def invoke(id_: int, agent: str, **fields: Any) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": agent,
        **fields.pop("attributes", {}),
    }
    return {"id": id_, "name": f"invoke_agent {agent}", "attributes": attributes, **fields}


NAMED: dict[str, Any] = {"attributes": {"gen_ai.agent.name": "scout", "gen_ai.conversation.id": "c-1"}}
OPEN: dict[str, Any] = {"end": 100 - NOW}
