"""OTLP: spans a second, decoded alone and from HTTP request to the answer that says they are durable."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import multiprocessing
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import CollectorRegistry

from queenright.instrumentation import names
from queenright.runtime.events import AgentEvent
from queenright.server.otlp import otlp_app
from queenright.server.otlp.decode import decode_spans
from queenright.server.otlp.receiver import Ingest
from queenright.server.telemetry.assembler import Assembler
from tests.benchmarks.row import Row

_SPANS = 40_000
_BUDGET = 20_000
_AGENTS = 200
_CLIENTS = 4
_HEAD = b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"
_NANO = 1_000_000_000


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _number(key: str, value: int) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(int_value=value))


def _span(n: int, agents: int = _AGENTS) -> Span:
    """Return the nth span of a fleet of workers: a chat, a tool call and a step by turns, 9 attributes."""
    agent, turn = n // 3 % agents, n // 3 // agents
    start = int(time.time() * _NANO) - 60 * _NANO
    trace_id = (agent + 1).to_bytes(16, "big")
    span = Span(
        trace_id=trace_id,
        span_id=(n + 1).to_bytes(8, "big"),
        parent_span_id=(2**40 + n // 3).to_bytes(8, "big"),
        start_time_unix_nano=start + n,
        end_time_unix_nano=start + n + 1_000_000,
        status=Status(),
    )
    span.attributes.extend(
        [
            _text(names.GEN_AI_AGENT_NAME, f"agent-{agent}"),
            _text(names.GEN_AI_CONVERSATION_ID, f"session-{agent}"),
            _text(names.INCARNATION_ID, f"incarnation-{agent}"),
            _text(names.NODE_ID, "research"),
        ]
    )
    match n % 3:
        case 0:
            span.name = "chat model"
            span.attributes.extend(
                [
                    _text(names.GEN_AI_OPERATION_NAME, "chat"),
                    _text(names.GEN_AI_PROVIDER_NAME, "provider"),
                    _text(names.GEN_AI_REQUEST_MODEL, "model"),
                    _number(names.GEN_AI_USAGE_INPUT_TOKENS, 1200),
                    _number(names.GEN_AI_USAGE_OUTPUT_TOKENS, 80),
                ]
            )
        case 1:
            span.name = "execute_tool search"
            span.attributes.extend(
                [
                    _text(names.GEN_AI_OPERATION_NAME, "execute_tool"),
                    _text(names.GEN_AI_TOOL_NAME, "search"),
                    _text(names.GEN_AI_TOOL_CALL_ID, f"call-{n}"),
                    _text(names.TOOL_ARGUMENTS_HASH, f"{turn:016x}"),
                    _text(names.TOOL_RESULT_HASH, f"{turn:016x}"),
                ]
            )
        case _:
            span.name = "step research"
            span.attributes.extend(
                [
                    _number(names.STEP_INDEX, turn),
                    _text(names.STEP_VERDICT, "ACCEPT" if turn % 4 == 0 else "CONTINUE"),
                    _text(names.GRAPH_ID, "research"),
                    _text("service.version", "1.0"),
                    _text("deployment.environment.name", "bench"),
                ]
            )
    return span


def _requests(batch: int) -> list[bytes]:
    requests: list[bytes] = []
    for first in range(0, _SPANS, batch):
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.attributes.append(_text(names.SERVICE_NAME, "fleet"))
        resource.resource.attributes.append(_text(names.SERVICE_INSTANCE_ID, "fleet-1"))
        resource.scope_spans.add().spans.extend(_span(n) for n in range(first, min(first + batch, _SPANS)))
        requests.append(request.SerializeToString())
    return requests


def _decode_alone(bodies: list[bytes]) -> float:
    memory = Assembler()
    started = time.process_time()
    for body in bodies:
        decode_spans(ExportTraceServiceRequest.FromString(body), memory, time.time())
    return _SPANS / (time.process_time() - started)


async def _no_op(_: list[AgentEvent]) -> None:
    return None


@contextlib.asynccontextmanager
async def _whole_path(folder: Path) -> AsyncIterator[Ingest]:
    """Yield what the service does with events: the durable log, then vital signs and findings."""
    from queenright.health.monitor import HealthMonitor
    from queenright.health.settings import HealthSettings
    from queenright.health.store import Store
    from queenright.server.service import calm_collector

    calm_collector()
    store = Store.open(f"sqlite:///{folder / 'bench.db'}")
    monitor = HealthMonitor(HealthSettings())

    async def ingest(events: list[AgentEvent]) -> None:
        await store.append(events)
        now = time.time()
        found = [said for event in events for said in monitor.apply(event, now)]
        if found:
            await store.append(found)

    try:
        yield ingest
    finally:
        await store.close()


async def _over_http(bodies: list[bytes], ingest: Ingest) -> float:
    """Return the spans a second of this process's CPU, all its threads; the clients are another process."""
    app = otlp_app(ingest, registry=CollectorRegistry())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
            await asyncio.sleep(0.01)
        clients = multiprocessing.get_context("spawn").Process(
            target=_send_all, args=(listener.getsockname()[1], bodies)
        )
        clients.start()
        while not app.counts.requests:  # noqa: ASYNC110  # the clients are another process
            await asyncio.sleep(0.001)
        began = time.process_time()
        await asyncio.to_thread(clients.join)
        rate = _SPANS / (time.process_time() - began)
        server.should_exit = True
        await serving
    if app.counts.accepted != _SPANS:
        raise RuntimeError(f"{app.counts.accepted} of {_SPANS} spans were accepted")
    return rate


def _send_all(port: int, bodies: list[bytes]) -> None:
    async def send() -> None:
        queue = iter(bodies)
        await asyncio.gather(*(_client(port, queue) for _ in range(_CLIENTS)))

    asyncio.run(send())


async def _client(port: int, bodies: Iterator[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in bodies:
        writer.write(_HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"answered with {status!r}")
        length = 0
        while (line := await reader.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            if name == b"content-length":
                length = int(value)
        await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()


def _row(name: str, rate: float, budget: int) -> Row:
    return Row(name, f"{rate:,.0f} spans/s", f">= {budget:,} spans/s", rate >= budget)


def _http_rows(label: str, run: Callable[[list[bytes]], Awaitable[float]]) -> list[Row]:
    return [
        _row(f"{label}, batches of {batch}", asyncio.run(_measured(run, _requests(batch))), _BUDGET)
        for batch in (100, 512)
    ]


async def _measured(run: Callable[[list[bytes]], Awaitable[float]], bodies: list[bytes]) -> float:
    return await run(bodies)


async def _store_and_judge(bodies: list[bytes]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        async with _whole_path(Path(folder)) as ingest:
            return await _over_http(bodies, ingest)


def run() -> list[Row]:
    """Measure with the spans of our own instrumentation, in spans a second of one core."""
    rows = [_row("OTLP decode alone, batches of 512", _decode_alone(_requests(512)), 2 * _BUDGET)]
    rows += _http_rows("OTLP over HTTP to a no-op", lambda bodies: _over_http(bodies, _no_op))
    if importlib.util.find_spec("queenright.health.store") and importlib.util.find_spec(
        "queenright.health.monitor"
    ):
        rows += _http_rows("OTLP over HTTP to durable log, vital signs, findings", _store_and_judge)
    return rows


if __name__ == "__main__":
    for row in run():
        print(row)
