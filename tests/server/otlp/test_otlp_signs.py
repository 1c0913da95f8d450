"""B88: anything that a process sends shows that it is alive."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from prometheus_client import CollectorRegistry

from queenright.instrumentation import names
from queenright.runtime.events import AgentEvent
from queenright.server.otlp import OtlpReceiver
from tests.server.otlp.conftest import serve

PROCESS = KeyValue(key=names.SERVICE_INSTANCE_ID, value=AnyValue(string_value="p-1"))


async def ignore_events(events: list[AgentEvent]) -> None:
    pass


@pytest.fixture
async def signs() -> AsyncIterator[tuple[str, dict[str, float | None]]]:
    """Yield the URL of a receiver, and the time of the last sign of life of each process."""
    signs_by_source: dict[str, float | None] = {}
    app = OtlpReceiver(
        ignore_events, registry=CollectorRegistry(), record_process_alive=signs_by_source.update
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server, task = await serve(app, listener)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", signs_by_source
        server.should_exit = True
        await task


async def post_message(url: str, path: str, body: bytes) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        headers = {"content-type": "application/x-protobuf"}
        response = await http.post(f"{url}/v1/{path}", content=body, headers=headers)
    assert response.status_code == 200


async def test_metrics_and_spans_without_an_agent_are_signs_of_life(
    signs: tuple[str, dict[str, float | None]],
) -> None:
    url, received_signs = signs
    metrics = ExportMetricsServiceRequest()
    metrics.resource_metrics.add().resource.attributes.append(PROCESS)
    await post_message(url, "metrics", metrics.SerializeToString())
    assert received_signs == {"p-1": None}

    received_signs.clear()
    traces = ExportTraceServiceRequest()
    group = traces.resource_spans.add()
    group.resource.attributes.append(PROCESS)
    group.scope_spans.add().spans.add(name="GET /", trace_id=b"t" * 16, span_id=b"s" * 8)
    await post_message(url, "traces", traces.SerializeToString())
    assert received_signs == {"p-1": None}


@pytest.mark.parametrize(
    ("expected", "recorded_interval"), [(30.0, 30.0), (0.001, 1.0), (0.0, None), (-5.0, None)]
)
async def test_report_of_open_work_names_the_interval_to_the_next_report(
    signs: tuple[str, dict[str, float | None]], expected: float, recorded_interval: float | None
) -> None:
    """Reports without new content count too. An impossible interval is ignored."""
    url, received_signs = signs
    logs = ExportLogsServiceRequest()
    group = logs.resource_logs.add()
    group.resource.attributes.append(PROCESS)
    record = group.scope_logs.add().log_records.add(
        event_name=names.EVENT_SPAN_OPEN,
        trace_id=b"t" * 16,
        span_id=b"s" * 8,
        time_unix_nano=time.time_ns(),
    )
    texts = {names.OPEN_SPAN_KIND: "tool", names.OPEN_SPAN_NAME: "execute_tool look"}
    record.attributes.extend(
        KeyValue(key=key, value=AnyValue(string_value=attribute_value))
        for key, attribute_value in texts.items()
    )
    record.attributes.append(KeyValue(key=names.HEARTBEAT_INTERVAL, value=AnyValue(double_value=expected)))
    for _ in range(2):
        received_signs.clear()
        await post_message(url, "logs", logs.SerializeToString())
        assert received_signs == {"p-1": recorded_interval}
