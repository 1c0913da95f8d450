"""
OTLP: spans and log records per second, for decoding alone and from the request to the durable response.

The spans are of our own instrumentation, the log records of Claude Code.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import uvicorn
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import CollectorRegistry

from queenright.instrumentation import names
from queenright.instrumentation.otlp import SCOPE
from queenright.runtime.events import AgentEvent
from queenright.server.otlp import OtlpReceiver
from queenright.server.otlp.decode import decode_logs, decode_spans
from queenright.server.otlp.receiver import Ingest
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.batch import Batch
from tools.benchmarks.row import Row

_SPANS = 40_000
_BUDGET = 20_000
_AGENTS = 200
_CLIENTS = 4
_HEAD = "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"
_TRACES, _LOGS = "/v1/traces", "/v1/logs"
_TURN = (
    "api_request",
    "hook_execution_start",
    "tool_decision",
    "hook_execution_complete",
    "hook_execution_start",
    "tool_result",
    "hook_execution_complete",
)
"""The log records of Claude Code for a model turn with one tool call, while its hooks call a service."""
_NANO = 1_000_000_000


def _text_attribute(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _number_attribute(key: str, value: int) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(int_value=value))


def worker_attributes(worker: int, prefix: str = "agent") -> dict[str, str]:
    """Return the attributes that identify a worker."""
    return {
        names.GEN_AI_AGENT_NAME: f"{prefix}-{worker}",
        names.GEN_AI_CONVERSATION_ID: f"session-{worker}",
        names.INCARNATION_ID: f"incarnation-{worker}",
    }


def make_span(n: int, agents: int = _AGENTS, prefix: str = "agent") -> Span:
    """Return the nth span of a fleet of workers: alternately a chat, a tool call and a step; 9 attributes."""
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
        _text_attribute(key, value) for key, value in worker_attributes(agent, prefix).items()
    )
    span.attributes.append(_text_attribute(names.NODE_ID, "research"))
    match n % 3:
        case 0:
            span.name = "chat model"
            span.attributes.extend(
                [
                    _text_attribute(names.GEN_AI_OPERATION_NAME, "chat"),
                    _text_attribute(names.GEN_AI_PROVIDER_NAME, "provider"),
                    _text_attribute(names.GEN_AI_REQUEST_MODEL, "model"),
                    _number_attribute(names.GEN_AI_USAGE_INPUT_TOKENS, 1200),
                    _number_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, 80),
                ]
            )
        case 1:
            span.name = "execute_tool search"
            span.attributes.extend(
                [
                    _text_attribute(names.GEN_AI_OPERATION_NAME, "execute_tool"),
                    _text_attribute(names.GEN_AI_TOOL_NAME, "search"),
                    _text_attribute(names.GEN_AI_TOOL_CALL_ID, f"call-{n}"),
                    _text_attribute(names.TOOL_ARGUMENTS_HASH, f"{turn:016x}"),
                    _text_attribute(names.TOOL_RESULT_HASH, f"{turn:016x}"),
                ]
            )
        case _:
            span.name = "step research"
            span.attributes.extend(
                [
                    _number_attribute(names.STEP_INDEX, turn),
                    _text_attribute(names.STEP_VERDICT, "ACCEPT" if turn % 4 == 0 else "CONTINUE"),
                    _text_attribute(names.GRAPH_ID, "research"),
                    _text_attribute("service.version", "1.0"),
                    _text_attribute("deployment.environment.name", "bench"),
                ]
            )
    return span


def make_requests(
    batch: int, spans: int = _SPANS, agents: int = _AGENTS, *, first: int = 0, prefix: str = "agent"
) -> list[bytes]:
    """Return protobuf requests with the spans of a fleet, starting at number ``first``."""
    requests: list[bytes] = []
    for begin in range(first, first + spans, batch):
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.attributes.append(_text_attribute(names.SERVICE_NAME, "fleet"))
        resource.resource.attributes.append(_text_attribute(names.SERVICE_INSTANCE_ID, "fleet-1"))
        resource.resource.attributes.append(_text_attribute(names.DISTRIBUTION_NAME, names.DISTRIBUTION))
        scope = resource.scope_spans.add()
        scope.scope.name = SCOPE.name
        scope.spans.extend(
            make_span(n, agents, prefix) for n in range(begin, min(begin + batch, first + spans))
        )
        requests.append(request.SerializeToString())
    return requests


def _make_record(n: int) -> LogRecord:
    """Return the nth log record of a fleet of coding agents."""
    agent, turn = n // len(_TURN) % _AGENTS, n // len(_TURN) // _AGENTS
    moment = int(time.time() * _NANO) - 60 * _NANO + n
    record = LogRecord(time_unix_nano=moment, observed_time_unix_nano=moment)
    name = _TURN[n % len(_TURN)]
    record.body.string_value = f"claude_code.{name}"
    texts = {
        "user.id": f"user-{agent}",
        "session.id": f"session-{agent}",
        "terminal.type": "xterm",
        "event.name": name,
        "prompt.id": f"prompt-{agent}-{turn}",
    }
    if name == "api_request":
        texts |= {"model": "model", "cost_usd": "0.0123", "duration_ms": "1200"}
        texts |= {"input_tokens": "1200", "output_tokens": "80", "cache_read_tokens": "900"}
    elif name.startswith("tool"):
        texts |= {"tool_name": "Bash", "tool_use_id": f"call-{agent}-{turn}", "decision": "accept"}
    else:
        texts |= {"hook_event": "PreToolUse", "hook_name": "PreToolUse:Bash", "num_hooks": "1"}
    if name == "tool_result":
        texts |= {"success": "true", "duration_ms": "40", "tool_result_size_bytes": "2000"}
    record.attributes.extend(_text_attribute(key, value) for key, value in texts.items())
    record.attributes.append(_number_attribute("event.sequence", n))
    return record


def _make_log_requests(batch: int) -> list[bytes]:
    requests: list[bytes] = []
    for first in range(0, _SPANS, batch):
        request = ExportLogsServiceRequest()
        resource = request.resource_logs.add()
        resource.resource.attributes.append(_text_attribute(names.SERVICE_NAME, "claude-code"))
        scope = resource.scope_logs.add()
        scope.scope.name = "com.anthropic.claude_code.events"
        scope.log_records.extend(_make_record(n) for n in range(first, min(first + batch, _SPANS)))
        requests.append(request.SerializeToString())
    return requests


def _measure_decoding_alone(decode: Callable[[bytes, Assembler], Batch], bodies: list[bytes]) -> float:
    assembler = Assembler()
    started = time.process_time()
    for body in bodies:
        decode(body, assembler)
    return _SPANS / (time.process_time() - started)


def _decode_spans(body: bytes, assembler: Assembler) -> Batch:
    return decode_spans(ExportTraceServiceRequest.FromString(body), assembler, time.time())


def _decode_logs(body: bytes, assembler: Assembler) -> Batch:
    return decode_logs(ExportLogsServiceRequest.FromString(body), assembler, time.time())


async def _no_op(_: list[AgentEvent]) -> None:
    return None


@contextlib.asynccontextmanager
async def _open_whole_path(folder: Path) -> AsyncIterator[Ingest]:
    """Yield a function that handles events like the service: the log, then vital signs and findings."""
    from queenright.cli.jobs.service import tune_garbage_collector
    from queenright.health.monitoring.monitor import HealthMonitor
    from queenright.health.settings import HealthSettings
    from queenright.health.store.store import Store

    tune_garbage_collector()
    store = Store.open(f"sqlite:///{folder / 'bench.db'}")
    monitor = HealthMonitor(HealthSettings())

    async def ingest(events: list[AgentEvent]) -> None:
        await store.append(events)
        now = time.time()
        all_events = [result for event in events for result in monitor.apply(event, now)]
        if all_events:
            await store.append(all_events)

    try:
        yield ingest
    finally:
        await store.close()


async def _measure_over_http(path: str, bodies: list[bytes], ingest: Ingest) -> float:
    """Return the spans per CPU-second of this process, all threads; the clients are another process."""
    app = OtlpReceiver(ingest, registry=CollectorRegistry())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
            await asyncio.sleep(0.01)
        clients = multiprocessing.get_context("spawn").Process(
            target=_send_all, args=(listener.getsockname()[1], path, bodies)
        )
        clients.start()
        while not app.counts.requests:  # noqa: ASYNC110  # the clients are another process
            await asyncio.sleep(0.001)
        start = time.process_time()
        await asyncio.to_thread(clients.join)
        rate = _SPANS / (time.process_time() - start)
        server.should_exit = True
        await serving
    span_count = app.counts.accepted + app.counts.ignored
    if span_count != _SPANS:
        raise RuntimeError(f"{span_count} of {_SPANS} spans or records were accepted")
    return rate


def _send_all(port: int, path: str, bodies: list[bytes]) -> None:
    async def send() -> None:
        queue = iter(bodies)
        await asyncio.gather(*(_send_from_client(port, path, queue) for _ in range(_CLIENTS)))

    asyncio.run(send())


async def _send_from_client(port: int, path: str, bodies: Iterator[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = _HEAD.format(path=path).encode()
    for body in bodies:
        writer.write(head + f"content-length: {len(body)}\r\n\r\n".encode() + body)
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


def _make_row(name: str, rate: float, budget: int) -> Row:
    return Row(name, f"{rate:,.0f}/s", f">= {budget:,}/s", rate >= budget)


async def _measure_decoding(path: str, bodies: list[bytes]) -> float:
    return await _measure_over_http(path, bodies, _no_op)


async def _measure_whole_path(path: str, bodies: list[bytes]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        async with _open_whole_path(Path(folder)) as ingest:
            return await _measure_over_http(path, bodies, ingest)


def run() -> list[Row]:
    """Measure spans, then log records, per second of one core."""
    rows = []
    for name, path, requests, decode in (
        ("spans", _TRACES, make_requests, _decode_spans),
        ("log records", _LOGS, _make_log_requests, _decode_logs),
    ):
        rate = _measure_decoding_alone(decode, requests(512))
        rows.append(_make_row(f"{name} decoded alone, batches of 512", rate, 2 * _BUDGET))
        for label, over_http in (
            ("over HTTP to a no-op", _measure_decoding),
            ("over HTTP to durable log, vital signs, findings", _measure_whole_path),
        ):
            for batch in (100, 512):
                rate = asyncio.run(over_http(path, requests(batch)))
                rows.append(_make_row(f"{name} {label}, batches of {batch}", rate, _BUDGET))
    return rows


if __name__ == "__main__":
    for row in run():
        print(row)
