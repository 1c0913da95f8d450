"""The receiver never responds with a server error, whatever the request."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import MutableMapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry

from queenright.instrumentation.conventions import MARKERS, OPERATIONS
from queenright.instrumentation.identity import clean_name
from queenright.runtime.events import AgentEvent
from queenright.server.otlp import OtlpReceiver
from queenright.server.otlp.decode import decode_spans
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.dialects import LOOKUP

PATHS = ["/v1/traces", "/v1/logs", "/v1/metrics"]
TYPES = ["application/json", "application/x-protobuf"]


async def post(path: str, headers: dict[str, str], body: bytes) -> tuple[int, list[AgentEvent]]:
    """Send a request to the app as uvicorn does, and return the status and the events."""
    events: list[AgentEvent] = []
    statuses: list[int] = []

    async def ingest(new_events: list[AgentEvent]) -> None:
        events.extend(new_events)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        statuses.append(message.get("status", 0))

    app = OtlpReceiver(ingest, registry=CollectorRegistry())
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await app({"type": "http", "method": "POST", "path": path, "headers": raw}, receive, send)
    return statuses[0], events


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)

any_values = st.one_of(
    json_values,
    st.fixed_dictionaries({"stringValue": st.text()}),
    st.fixed_dictionaries({"intValue": st.integers(-(2**63), 2**63 - 1).map(str)}),
    st.fixed_dictionaries({"doubleValue": st.floats(allow_nan=False, allow_infinity=False)}),
    st.fixed_dictionaries({"stringValue": st.sampled_from([*OPERATIONS, *MARKERS])}),
    st.fixed_dictionaries({"arrayValue": st.fixed_dictionaries({"values": st.just([{"boolValue": True}])})}),
)
hexadecimal = st.binary(min_size=8, max_size=8).map(bytes.hex)
spans = st.fixed_dictionaries(
    {},
    optional={
        "traceId": st.binary(min_size=16, max_size=16).map(bytes.hex) | st.text(max_size=4),
        "spanId": hexadecimal,
        "parentSpanId": hexadecimal,
        "name": st.sampled_from(["chat m", "execute_tool x", "invoke_agent y", "step z", ""]) | st.text(),
        "kind": st.integers(-1, 9) | st.just("SPAN_KIND_SERVER"),
        "flags": st.integers(0, 2**32 - 1),
        "startTimeUnixNano": st.integers(0, 2**64 - 1).map(str) | json_values,
        "endTimeUnixNano": st.integers(0, 2**64 - 1).map(str),
        "status": st.just({"code": 2}) | json_values,
        "attributes": st.lists(
            st.fixed_dictionaries({"key": st.sampled_from(list(LOOKUP)) | st.text(), "value": any_values}),
            max_size=8,
        )
        | json_values,
    },
)


@given(
    path=st.sampled_from(PATHS),
    type_=st.sampled_from([*TYPES, "text/plain", ""]),
    encoding=st.sampled_from(["", "gzip", "deflate", "identity", "br", "\u00e9"]),
    body=st.binary(max_size=300),
    is_compressed=st.booleans(),
)
def test_arbitrary_bytes_cause_no_server_error(
    path: str, type_: str, encoding: str, body: bytes, is_compressed: bool
) -> None:
    if is_compressed and encoding == "gzip":
        body = gzip.compress(body)
    elif is_compressed and encoding == "deflate":
        body = zlib.compress(body)

    status, _ = asyncio.run(post(path, {"content-type": type_, "content-encoding": encoding}, body))

    assert status in (200, 400, 415)


@given(path=st.sampled_from(PATHS), value=json_values)
def test_arbitrary_json_causes_no_server_error(path: str, value: Any) -> None:
    body = json.dumps({"resourceSpans": value, "resourceLogs": value, "resourceMetrics": value}).encode()

    status, _ = asyncio.run(post(path, {"content-type": "application/json"}, body))

    assert status in (200, 400)


@given(span_fields=st.lists(spans, max_size=6))
def test_odd_spans_give_valid_events_or_none(span_fields: list[dict[str, Any]]) -> None:
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": span_fields}]}]}).encode()

    status, events = asyncio.run(post("/v1/traces", {"content-type": "application/json"}, body))

    assert status in (200, 400)
    for event in events:
        json.dumps(event.to_dict(), allow_nan=False).encode()
        assert event.agent_id
        assert event.session_id
        assert all(len(str(value)) <= 500 for value in event.data.values())


@given(body=st.binary(max_size=200), length=st.integers(0, 400), mutation=st.binary(max_size=6))
def test_damaged_request_is_decoded_or_refused(body: bytes, length: int, mutation: bytes) -> None:
    request = ExportTraceServiceRequest()
    span = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="chat m")
    )
    span.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
    span.attributes.add(key="gen_ai.agent.name").value.bytes_value = body
    serialized = request.SerializeToString()

    status, _ = asyncio.run(
        post("/v1/traces", {"content-type": TYPES[1]}, serialized[:length] + mutation + serialized[length:])
    )

    assert status in (200, 400)


@given(st.text(max_size=600))
def test_cleaned_name_is_printable_bounded_and_stable(name: str) -> None:
    cleaned_name = clean_name(name)

    assert len(cleaned_name) <= 200
    assert clean_name(cleaned_name) == cleaned_name
    assert not any(ch in cleaned_name for ch in "\x00\n\r\t\x1b\u2028")
    cleaned_name.encode()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 60))
def test_span_sent_twice_counts_once(ids: list[int], batch: int) -> None:
    memory, stored_count = Assembler(), 0
    for offset in range(0, len(ids), batch):
        request = ExportTraceServiceRequest()
        scope = request.resource_spans.add().scope_spans.add()
        for span_id in ids[offset : offset + batch]:
            scope.spans.add(
                trace_id=b"t" * 16,
                span_id=span_id.to_bytes(8, "big"),
                name="execute_tool x",
                parent_span_id=b"p" * 8,
            )
        decoded = decode_spans(request, memory, 1e9)
        memory.duplicates.finish_storing(decoded.identities, is_stored=True)
        stored_count += decoded.accepted

    assert stored_count == len(set(ids))
