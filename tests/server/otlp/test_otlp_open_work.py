"""
Cause 10: open work as other libraries report it, in recordings of Logfire and PartialSpanProcessor.

`open_work/logfire.json` was recorded from logfire 5.2.0 with pydantic-ai 2.68.0, and
`open_work/partial_spans.json` from partial-span-processor 0.0.9. In both recordings, an agent calls the tool
`look`, which takes 1.5 s.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from queenright.runtime.events import AgentEvent
from queenright.server.otlp.decode import decode_logs, decode_spans
from queenright.server.telemetry.assembler import Assembler

LATER = 1_800_000_000.0
RECORDINGS_FOLDER = Path(__file__).parent / "open_work"
Request = dict[str, Any]

START_TYPES = ["execution_started", "tool_call_started"]
"""Types of the start events that both recordings contain."""


def load_requests(name: str) -> list[Request]:
    rows: list[Request] = json.loads((RECORDINGS_FOLDER / f"{name}.json").read_text())
    return rows


def decode_request(request: Request, assembler: Assembler) -> list[AgentEvent]:
    if request["path"] == "/v1/traces":
        batch = decode_spans(ParseDict(request["body"], ExportTraceServiceRequest()), assembler, LATER)
    else:
        batch = decode_logs(ParseDict(request["body"], ExportLogsServiceRequest()), assembler, LATER)
    assembler.duplicates.finish_storing(batch.identities, is_stored=True)
    return batch.events


def make_heartbeats() -> list[Request]:
    return [request for request in load_requests("partial_spans") if request["path"] == "/v1/logs"]


def get_record(request: Request) -> dict[str, Any]:
    record: dict[str, Any] = request["body"]["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    return record


@pytest.mark.parametrize("name", ["logfire", "partial_spans"])
def test_work_is_reported_while_it_is_open_and_ends_once(name: str) -> None:
    """B88: a hang in the first call of a run is found. The end arrives with the span."""
    assembler = Assembler()
    events = [event for request in load_requests(name) for event in decode_request(request, assembler)]

    kinds = [event.type.value for event in events]
    assert kinds.index("tool_call_started") < kinds.index("tool_call_completed")
    assert [kinds.count(kind) for kind in (*START_TYPES, "tool_call_completed", "execution_completed")] == [
        1
    ] * 4
    assert {event.agent_id for event in events} == {"porter"}
    assert len({event.session_id for event in events}) == 1
    [start_event] = [event for event in events if event.type.value == "tool_call_started"]
    [end_event] = [event for event in events if event.type.value == "tool_call_completed"]
    assert (start_event.data["tool"], start_event.span_id) == ("look", end_event.span_id)
    assert start_event.data["call_id"] == end_event.data["call_id"]
    assert end_event.data["duration"] == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize("name", ["logfire", "partial_spans"])
@given(data=st.data())
def test_order_and_repetition_of_requests_change_nothing(name: str, data: st.DataObject) -> None:
    """B84: ended work does not reopen, and each call counts once."""
    requests = load_requests(name)
    order = data.draw(st.permutations(requests + data.draw(st.lists(st.sampled_from(requests), max_size=3))))
    assembler = Assembler()
    open_calls: set[str] = set()
    end_count = 0
    for request in order:
        for event in decode_request(request, assembler):
            if event.type.value == "tool_call_started":
                open_calls.add(event.span_id)
            elif event.type.value == "tool_call_completed":
                open_calls.discard(event.span_id)
                end_count += 1

    assert (end_count, open_calls) == (1, set())


def test_partial_span_may_be_protobuf_in_base64() -> None:
    """Older versions of the processor write the span in this form."""
    assembler = Assembler()
    events = []
    for request in make_heartbeats():
        record = get_record(request)
        spans = json.loads(record["body"]["stringValue"])
        for span in spans["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            for key in {"traceId", "spanId", "parentSpanId"} & set(span):
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
        encoded = base64.b64encode(ParseDict(spans, TracesData()).SerializeToString()).decode()
        record["body"]["stringValue"] = encoded
        events += decode_request(request, assembler)

    assert [event.type.value for event in events] == START_TYPES


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "{}",
        '{"resourceSpans": 7}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "no"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": 7}]}]}]}',
        "[" * 1000,
        '{"a":' * 1000,
        "AAAA",
        "\x00",
        "x" * 2_000_000,
    ],
)
def test_invalid_span_body_is_rejected_and_the_others_are_processed(body: str) -> None:
    """B90: the response tells the sender about the error."""
    [request, *_] = make_heartbeats()
    get_record(request)["body"]["stringValue"] = body
    batch = decode_logs(ParseDict(request["body"], ExportLogsServiceRequest()), Assembler(), LATER)

    assert not batch.events
    assert batch.rejected == 1
    assert any("span" in reason for reason in batch.reasons)


@pytest.mark.parametrize("value", ["", "no id", "0123", "g" * 16])
def test_span_whose_pending_parent_attribute_is_invalid_has_ended(value: str) -> None:
    """An unrelated attribute with that name must not make the work appear open."""
    span = {
        "traceId": "QUJDREVGR0hJSktMTU5PUA==",
        "spanId": "QUJDREVGR0g=",
        "name": "execute_tool look",
        "startTimeUnixNano": "1800000000000000000",
        "endTimeUnixNano": "1800000001000000000",
        "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}},
            {"key": "gen_ai.agent.name", "value": {"stringValue": "porter"}},
            {"key": "logfire.pending_parent_id", "value": {"stringValue": value}},
        ],
    }
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    batch = decode_spans(ParseDict(body, ExportTraceServiceRequest()), Assembler(), LATER)

    kinds = [event.type.value for event in batch.events]
    assert kinds == ["execution_started", "tool_call_completed"]
    assert not batch.rejected
