"""The receiver over real HTTP: both encodings, compression, limits, errors and durability."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # ships stubs without py.typed
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from queenright.server.otlp import OverloadedError

if TYPE_CHECKING:
    from tests.server.otlp.conftest import RunningReceiver

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
GZIP = {"content-encoding": "gzip"}
DEFLATE = {"content-encoding": "deflate"}
INCOMPLETE_REQUEST = (
    b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
)
TRACE = "5b8efff798038103d269b633813fc60c"


def make_json_span(span_id: str = "eee19b7ec3c1b174", **fields: Any) -> dict[str, Any]:
    now_ns = time.time_ns()
    return {
        "traceId": TRACE,
        "spanId": span_id,
        "name": "execute_tool search",
        "startTimeUnixNano": str(now_ns - 1_000_000),
        "endTimeUnixNano": str(now_ns),
        "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}},
            {"key": "gen_ai.agent.name", "value": {"stringValue": "scout"}},
        ],
        **fields,
    }


def make_json_traces(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def make_protobuf_traces(*spans: dict[str, Any]) -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for fields in spans:
        span = scope.spans.add(
            trace_id=bytes.fromhex(fields["traceId"]),
            span_id=bytes.fromhex(fields["spanId"]),
            name=fields["name"],
            start_time_unix_nano=int(fields["startTimeUnixNano"]),
            end_time_unix_nano=int(fields["endTimeUnixNano"]),
        )
        for attribute in fields["attributes"]:
            span.attributes.add(key=attribute["key"]).value.string_value = attribute["value"]["stringValue"]
    return request.SerializeToString()


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
async def test_span_exporter_of_the_sdk_is_supported(otlp: RunningReceiver, compression: Compression) -> None:
    exporter = OTLPSpanExporter(f"{otlp.url}/v1/traces", compression=compression)
    provider = TracerProvider(resource=Resource({"service.name": "svc", "service.instance.id": "i-1"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def work() -> None:
        with provider.get_tracer("bees").start_as_current_span(
            "invoke_agent scout",
            attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "scout"},
        ):
            pass
        provider.shutdown()

    await asyncio.to_thread(work)

    assert otlp.list_types() == ["execution_started", "execution_completed"]
    assert {(event.agent_id, event.incarnation_id) for event in otlp.events} == {("scout", "i-1")}
    assert otlp.count_spans("accepted") == 1


async def test_log_exporter_of_the_sdk_is_supported(otlp: RunningReceiver) -> None:
    provider = LoggerProvider(resource=Resource({"service.name": "svc"}))
    provider.add_log_record_processor(
        SimpleLogRecordProcessor(OTLPLogExporter(f"{otlp.url}/v1/logs", compression=Compression.Gzip))
    )

    def work() -> None:
        logger = provider.get_logger("queenright")
        attributes = {
            "gen_ai.agent.name": "scout",
            "gen_ai.conversation.id": "s-1",
            "queenright.incarnation.id": "i-1",
        }
        logger.emit(event_name="queenright.agent.started", attributes=attributes)
        logger.emit(event_name="some.other.event", attributes=attributes)
        provider.shutdown()

    await asyncio.to_thread(work)

    assert otlp.list_types() == ["execution_started"]
    assert otlp.app.counts.ignored == 1


async def test_json_may_have_hexadecimal_ids_text_numbers_and_unknown_fields(
    otlp: RunningReceiver, http: httpx.AsyncClient
) -> None:
    body = make_json_traces(make_json_span(flags=257, kind="SPAN_KIND_INTERNAL", unknownField={"a": [1]}))

    response = await http.post("/v1/traces", json=body)

    assert (response.status_code, response.headers["content-type"], response.json()) == (
        200,
        "application/json",
        {},
    )
    [start_event, call_event, *_] = otlp.events
    assert start_event.trace_id == TRACE
    assert (call_event.span_id, call_event.data["tool"]) == ("eee19b7ec3c1b174", "search")


async def test_response_has_the_encoding_of_the_request(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/traces", content=make_protobuf_traces(make_json_span()), headers=PROTOBUF)

    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-protobuf")
    assert not ExportTraceServiceResponse.FromString(response.content).HasField("partial_success")


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs", "/v1/metrics"])
@pytest.mark.parametrize("headers", [PROTOBUF, JSON, {"content-type": "application/json; charset=utf-8"}])
async def test_empty_body_is_an_empty_request(
    http: httpx.AsyncClient, path: str, headers: dict[str, str]
) -> None:
    assert (await http.post(path, headers=headers)).status_code == 200


async def test_metrics_are_accepted_and_ignored(otlp: RunningReceiver, http: httpx.AsyncClient) -> None:
    request = ExportMetricsServiceRequest()
    request.resource_metrics.add().scope_metrics.add().metrics.add(name="x")

    response = await http.post("/v1/metrics", content=request.SerializeToString(), headers=PROTOBUF)

    assert (response.status_code, otlp.events) == (200, [])


async def test_unusable_spans_are_a_partial_success(otlp: RunningReceiver, http: httpx.AsyncClient) -> None:
    response = await http.post(
        "/v1/traces", json=make_json_traces(make_json_span("0" * 16), make_json_span())
    )

    assert response.json()["partialSuccess"]["rejectedSpans"] == "1"
    assert "span id" in response.json()["partialSuccess"]["errorMessage"]
    assert (otlp.count_spans("rejected"), otlp.count_spans("accepted")) == (1, 1)


async def test_unusable_records_are_a_partial_success(http: httpx.AsyncClient) -> None:
    record = {"eventName": "queenright.heartbeat", "timeUnixNano": str(time.time_ns())}

    response = await http.post("/v1/logs", json={"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})

    assert response.json()["partialSuccess"]["rejectedLogRecords"] == "1"
    assert "gen_ai.agent.name" in response.json()["partialSuccess"]["errorMessage"]


BODY_WITH_INVALID_ID = json.dumps(make_json_traces(make_json_span("xyz"))).encode()


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "expected_reason"),
    [
        ("POST", "/v1/traces", PROTOBUF, b"\xff\xff\xff", 400, "ExportTraceServiceRequest"),
        ("POST", "/v1/traces", JSON, b"{", 400, "ExportTraceServiceRequest"),
        ("POST", "/v1/traces", JSON, b"[]", 400, "JSON object"),
        ("POST", "/v1/traces", JSON, b'{"resourceSpans": 7}', 400, "ExportTraceServiceRequest"),
        ("POST", "/v1/traces", JSON, BODY_WITH_INVALID_ID, 400, "hexadecimal"),
        ("POST", "/v1/traces", JSON, b'{"a":' * 500 + b"1" + b"}" * 500, 400, "deep"),
        ("POST", "/v1/traces", {**PROTOBUF, **GZIP}, b"plain", 400, "gzip"),
        ("POST", "/v1/traces", {**PROTOBUF, **GZIP}, gzip.compress(b"x" * 99, mtime=0)[:-9], 400, "gzip"),
        ("POST", "/v1/traces", {**PROTOBUF, "content-encoding": "br"}, b"x", 415, "'br'"),
        ("POST", "/v1/traces", {"content-type": "text/plain"}, b"x", 415, "text/plain"),
        ("POST", "/v1/traces", {}, b"x", 415, "application/x-protobuf"),
        ("POST", "/v1/traces", PROTOBUF, b"x" * 65_537, 413, "65536"),
        ("POST", "/v1/traces", {**JSON, **GZIP}, gzip.compress(b"0" * 50_000_000, mtime=0), 413, "262144"),
        ("POST", "/v1/traces", {**JSON, **DEFLATE}, zlib.compress(b"0" * 500_000), 413, "262144"),
        ("GET", "/v1/traces", {}, b"", 405, "POST"),
        ("POST", "/v1/profiles", PROTOBUF, b"", 404, "/v1/traces"),
    ],
)  # fmt: skip
async def test_bad_request_is_answered_with_a_reason(
    otlp: RunningReceiver,
    http: httpx.AsyncClient,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    status: int,
    expected_reason: str,
) -> None:
    response = await http.request(method, path, content=body, headers=headers)

    assert response.status_code == status
    if headers.get("content-type") == "application/x-protobuf":
        reason = Status.FromString(response.content).message
    else:
        reason = response.json()["message"]
    assert expected_reason in reason
    assert otlp.app.counts.refused == 1
    if status == 405:
        assert response.headers["allow"] == "POST"


async def test_bad_request_does_not_affect_concurrent_requests(
    otlp: RunningReceiver, http: httpx.AsyncClient
) -> None:
    bodies = [
        make_protobuf_traces(make_json_span(f"{number:016x}")) if number % 2 else b"\xff\xff"
        for number in range(1, 41)
    ]

    statuses = [
        response.status_code
        for response in await asyncio.gather(
            *(http.post("/v1/traces", content=body, headers=PROTOBUF) for body in bodies)
        )
    ]

    assert statuses == [200 if number % 2 else 400 for number in range(1, 41)]
    assert otlp.list_types().count("tool_call_completed") == 20


async def test_several_gzip_members_are_one_body(otlp: RunningReceiver, http: httpx.AsyncClient) -> None:
    body = make_protobuf_traces(make_json_span())
    headers = {**PROTOBUF, "content-encoding": "gzip"}

    response = await http.post(
        "/v1/traces", content=gzip.compress(body[:10]) + gzip.compress(body[10:]), headers=headers
    )

    assert (response.status_code, otlp.count_spans("accepted")) == (200, 1)


async def test_unstored_spans_may_be_sent_again_and_count_once(
    otlp: RunningReceiver, http: httpx.AsyncClient
) -> None:
    body = make_protobuf_traces(make_json_span())
    otlp.failure = OSError("disk full")
    refused_response = await http.post("/v1/traces", content=body, headers=PROTOBUF)
    otlp.failure = OverloadedError(retry_after=7)
    overloaded_response = await http.post("/v1/traces", content=body, headers=PROTOBUF)
    otlp.failure = None
    stored_response = await http.post("/v1/traces", content=body, headers=PROTOBUF)
    repeated_response = await http.post("/v1/traces", content=body, headers=PROTOBUF)

    assert [
        response.status_code
        for response in (refused_response, overloaded_response, stored_response, repeated_response)
    ] == [503, 503, 200, 200]
    assert overloaded_response.headers["retry-after"] == "7"
    assert "disk" not in refused_response.text
    assert otlp.list_types() == ["execution_started", "tool_call_completed"]


async def test_response_is_sent_only_when_the_events_are_durable(
    otlp: RunningReceiver, http: httpx.AsyncClient
) -> None:
    is_durable, is_started = asyncio.Event(), asyncio.Event()

    async def store_slowly(_: list[Any]) -> None:
        is_started.set()
        await is_durable.wait()

    otlp.app._ingest = store_slowly
    body = make_protobuf_traces(make_json_span())
    request = asyncio.create_task(http.post("/v1/traces", content=body, headers=PROTOBUF))
    await asyncio.wait_for(is_started.wait(), 5)
    concurrent_response = await http.post("/v1/traces", content=body, headers=PROTOBUF)

    assert not request.done()
    assert concurrent_response.status_code == 503, (
        "it is not yet known whether the first request will be stored"
    )
    is_durable.set()
    assert (await request).status_code == 200


async def test_body_that_does_not_arrive_times_out(otlp: RunningReceiver) -> None:
    host, port = otlp.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(INCOMPLETE_REQUEST)

    status = await asyncio.wait_for(reader.readline(), 5)
    writer.close()

    assert b" 408 " in status


async def test_disconnected_client_leaves_no_state(otlp: RunningReceiver, http: httpx.AsyncClient) -> None:
    host, port = otlp.url.removeprefix("http://").split(":")
    for _ in range(5):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(INCOMPLETE_REQUEST)
        await writer.drain()
        writer.close()

    assert (
        await http.post("/v1/traces", content=make_protobuf_traces(make_json_span()), headers=PROTOBUF)
    ).status_code == 200
    async with asyncio.timeout(60):
        while otlp.app._in_flight:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.01)


async def test_requests_beyond_the_memory_limit_get_a_retryable_response(
    otlp: RunningReceiver, http: httpx.AsyncClient
) -> None:
    otlp.app._in_flight = otlp.app._max_in_flight

    response = await http.post("/v1/traces", content=make_protobuf_traces(make_json_span()), headers=PROTOBUF)

    assert (response.status_code, "retry-after" in response.headers) == (503, True)


async def test_large_bodies_are_parsed_outside_the_event_loop(
    otlp: RunningReceiver, http: httpx.AsyncClient
) -> None:
    otlp.app._max_body = 16 << 20
    body = make_protobuf_traces(*(make_json_span(f"{index:016x}") for index in range(1, 3001)))
    assert len(body) > 256 * 1024

    response = await http.post("/v1/traces", content=body, headers=PROTOBUF)

    assert (response.status_code, otlp.count_spans("accepted")) == (200, 3000)
