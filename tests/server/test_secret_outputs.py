"""B129: a secret in any input field is in no output: names are masked like texts."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import select

from queenright.health.store.retention import prune
from queenright.health.store.tables import AUDIT_ARCHIVE
from queenright.instrumentation import Worker, names
from queenright.server.ops.sockets import listen, serve_app, socket_url
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.telemetry.dialects import ATTRIBUTES
from queenright.server.telemetry.logs import RECORDS
from queenright.server.telemetry.process import PROCESS_ATTRIBUTES, RESOURCE_ATTRIBUTES
from queenright.server.up_options import DEMO_DEFAULTS
from tests.alerting.parts import FakePeer
from tests.server.conftest import demo_settings
from tests.waiting import until

READ_PATHS = (
    "/api/agents",
    "/api/agents/health",
    "/api/tickets",
    "/api/notifications",
    "/api/status",
    "/api/breakers",
    "/api/recoveries",
    "/api/interventions",
    "/metrics",
    "/",
)
_KINDS = {"chat gpt": "chat", "execute_tool": "execute_tool", "invoke_agent": "invoke_agent", "step": ""}
_NANO = 1_000_000_000


class SecretGenerator:
    """Generates unique keys in the formats that providers document."""

    def __init__(self) -> None:
        self.used: list[str] = []

    def new(self) -> str:
        number = len(self.used)
        shapes = (
            f"sk-{number:05d}abcdefghijklmnopqrst",
            f"ghp_{number:05d}AbCdEfGhIjKlMnOpQrSt",
            f"AKIA{number:05d}ABCDEFGHIJK",
            f"Zq3/{number:05d}aB9cD2eF+5gH7iJ1kL4mN8oP0qR6sTU",
        )
        self.used.append(shapes[number % len(shapes)])
        assert len(self.used[-1]) >= 16
        return self.used[-1]

    def text(self) -> str:
        return f"my {self.new()} key"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = demo_settings(tmp_path / "storage", orchestrator="none")
    return found.model_copy(update={"step_logs": (tmp_path / "workers",)})


def make_attributes(secrets: SecretGenerator, **given: str) -> Iterator[KeyValue]:
    """Yield every attribute that is read, each with its own secret, and the ``given`` ones."""
    for field, spellings in ATTRIBUTES.items():
        for key in spellings:
            if field not in ("operation", "marker", "event", "verdict"):
                yield KeyValue(key=key, value=AnyValue(string_value=secrets.text()))
    for key, value in given.items():
        yield KeyValue(key=key, value=AnyValue(string_value=value))


def make_resource(secrets: SecretGenerator) -> list[KeyValue]:
    keys = {*RESOURCE_ATTRIBUTES.values(), *PROCESS_ATTRIBUTES} - {names.INCARNATION_ID}
    return [KeyValue(key=key, value=AnyValue(string_value=secrets.text())) for key in sorted(keys)]


def make_spans(secrets: SecretGenerator, first: int) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.extend(make_resource(secrets))
    scope = group.scope_spans.add()
    scope.scope.name, scope.scope.version = secrets.text(), secrets.text()
    now = time.time_ns()
    for number, (name, operation) in enumerate(_KINDS.items(), first):
        span = Span(
            name=f"{name} {secrets.new()}",
            trace_id=(number + 1).to_bytes(16, "big"),
            span_id=(number + 1).to_bytes(8, "big"),
            start_time_unix_nano=now - _NANO,
            end_time_unix_nano=now,
            status=Status(code=Status.STATUS_CODE_ERROR, message=secrets.text()),
        )
        given = {names.GEN_AI_OPERATION_NAME: operation} if operation else {names.STEP_VERDICT: "RETRY"}
        span.attributes.extend(make_attributes(secrets, **given))
        event = span.events.add(name="exception")
        event.attributes.append(KeyValue(key="exception.type", value=AnyValue(string_value=secrets.text())))
        event.attributes.append(
            KeyValue(key="exception.message", value=AnyValue(string_value=secrets.text()))
        )
        scope.spans.append(span)
    return request


def make_records(secrets: SecretGenerator) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.extend(make_resource(secrets))
    scope = group.scope_logs.add()
    scope.scope.name, scope.scope.version = secrets.text(), secrets.text()
    for name in RECORDS:
        record = scope.log_records.add(time_unix_nano=time.time_ns())
        record.event_name = name
        record.attributes.extend(make_attributes(secrets))
    return request


async def post_otlp(http: httpx.AsyncClient, running: RunningService, secrets: SecretGenerator) -> None:
    first = make_spans(secrets, 0)
    second = make_spans(secrets, 100)
    proto = {"content-type": "application/x-protobuf"}
    for path, body, headers in (
        ("traces", first.SerializeToString(), proto),
        ("traces", json.dumps(encode_json(second)).encode(), {"content-type": "application/json"}),
        ("logs", make_records(secrets).SerializeToString(), proto),
    ):
        answer = await http.post(f"{running.otlp_url}/v1/{path}", content=body, headers=headers)
        assert answer.status_code == 200, answer.text


def encode_json(request: ExportTraceServiceRequest) -> dict[str, Any]:
    found = MessageToDict(request)
    for group in found["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for number, span in enumerate(scope["spans"], 101):
                span["traceId"], span["spanId"] = f"{number:032x}", f"{number:016x}"
    return dict(found)


def write_step_log(folder: Path, secrets: SecretGenerator) -> None:
    row = {
        "agent_id": secrets.text(),
        "session_id": secrets.new(),
        "incarnation_id": secrets.new(),
        "graph_id": secrets.text(),
        "node_id": secrets.text(),
        "trace_id": secrets.new(),
        "span_id": secrets.new(),
        "step_index": 1,
        "verdict": "RETRY",
        "ended_at": time.time(),
        "error_type": secrets.text(),
        "error": secrets.text(),
        "feedback": secrets.text(),
        "tool_calls": [
            {
                "tool_name": secrets.text(),
                "call_id": secrets.new(),
                "error_type": secrets.text(),
                "error": secrets.text(),
                "outcome": "error",
                "args_hash": secrets.new(),
                "result_hash": secrets.new(),
            }
        ],
    }
    log = folder / "sessions" / "session-1" / "logs" / "tool_logs.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(json.dumps(row) + "\n")


def run_worker(endpoint: str, storage: Path, secrets: SecretGenerator) -> bytes:
    """Work as an instrumented agent with a secret in every name; return its metrics page."""
    registry = CollectorRegistry()
    failure = type(secrets.new().replace("/", "_"), (Exception,), {})
    with Worker(
        secrets.text(),
        endpoint=endpoint,
        storage=storage,
        registry=registry,
        graph_id=secrets.text(),
        framework=secrets.text(),
        version=secrets.text(),
    ) as worker:
        with worker.step(secrets.text()) as step:
            with step.llm(secrets.text(), secrets.text()):
                pass
            with pytest.raises(failure), step.tool(secrets.text(), {"q": 1}, call_id=secrets.new()):
                raise failure(secrets.text())
            step.verdict("RETRY", secrets.text())
        worker.checkpoint(secrets.text())
    return generate_latest(registry)


async def post_api(http: httpx.AsyncClient, secrets: SecretGenerator) -> list[httpx.Response]:
    beat = {"session_id": secrets.new().replace("/", "_"), "incarnation_id": secrets.new()}
    return [
        await http.post(f"/api/agents/{secrets.new().replace('/', '_')}/heartbeat", json=beat),
        await http.post("/api/agents/nobody/nudge", json={"message": secrets.text(), "by": secrets.new()}),
        await http.get(f"/api/agents/{secrets.new().replace('/', '_')}/health"),
        await http.get("/api/tickets", params={"agent": secrets.new()}),
    ]


async def read_stream(http: httpx.AsyncClient) -> str:
    """Return the text of the event stream so far."""
    result = ""
    try:
        async with asyncio.timeout(2), http.stream("GET", "/api/events") as answer:
            async for text in answer.aiter_text():
                result += text
    except TimeoutError:
        pass
    return result


def list_stored_files(folder: Path) -> dict[str, str]:
    """Return every stored file except the step log, which the worker itself wrote."""
    files = [path for path in folder.rglob("*") if path.is_file() and "workers" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes().decode("utf-8", "replace") for path in files}


async def test_secret_in_any_input_is_in_no_output(
    running: RunningService, http: httpx.AsyncClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B129: the database, the API, the event stream, the metrics, the pages and the log."""
    caplog.set_level(logging.DEBUG)
    secrets = SecretGenerator()
    streaming = asyncio.create_task(read_stream(http))
    await asyncio.sleep(0.2)

    await post_otlp(http, running, secrets)
    write_step_log(tmp_path / "workers", secrets)
    agents_page = await asyncio.to_thread(run_worker, running.otlp_url, tmp_path / "agent", secrets)
    answers = await post_api(http, secrets)
    await until(lambda: len(running.service.workers()) >= 5, "the workers are known")
    response = {path: await http.get(path) for path in READ_PATHS}
    for health in running.service.workers():
        path = f"/api/agents/{health.vitals.agent_id}/history"
        response[path] = await http.get(path)
    events = await streaming
    await running.service.store.read(lambda conn: conn.exec_driver_sql("SELECT 1").fetchall())

    outputs: dict[str, str] = {path: answer.text for path, answer in response.items()}
    outputs |= {f"answer {n}": answer.text for n, answer in enumerate(answers)}
    outputs["the agent's metrics"] = agents_page.decode()
    outputs["the event stream"] = events
    # The HTTP client of the test logs its own URLs.
    others = [
        record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
    ]
    outputs["the log"] = "\n".join(others)
    outputs |= list_stored_files(tmp_path)
    found = {(secret, name) for name, text in outputs.items() for secret in secrets.used if secret in text}
    assert not found
    assert len(secrets.used) > 200


def looping_spans(secrets: SecretGenerator) -> ExportTraceServiceRequest:
    """Return spans of an agent that repeats one call for minutes, with a secret in every name and text."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    now = time.time_ns()
    texts = {names.GEN_AI_AGENT_NAME: secrets.text(), names.GEN_AI_CONVERSATION_ID: secrets.new()}
    texts |= {names.INCARNATION_ID: "life-1", names.NODE_ID: secrets.text()}
    call = {
        names.GEN_AI_OPERATION_NAME: "execute_tool",
        names.GEN_AI_TOOL_NAME: secrets.text(),
        names.TOOL_ARGUMENTS_HASH: "a" * 16,
        names.TOOL_RESULT_HASH: "b" * 16,
        "error.type": secrets.text(),
    }
    message = secrets.text()
    for step in range(20):
        start = now - (20 - step) * 20 * _NANO
        given = (call | {names.GEN_AI_TOOL_CALL_ID: f"call-{step}"}, {names.STEP_VERDICT: "RETRY"})
        for number, (name, more) in enumerate(zip((f"execute_tool {message}", "step"), given, strict=True)):
            span = scope.spans.add(
                name=name,
                trace_id=b"t" * 16,
                span_id=(1 + 2 * step + number).to_bytes(8, "big"),
                start_time_unix_nano=start,
                end_time_unix_nano=start + _NANO,
                status=Status(code=Status.STATUS_CODE_ERROR, message=message),
            )
            span.attributes.extend(
                KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in (texts | more).items()
            )
    return request


async def test_alert_and_archive_hold_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B129: alerts to Alertmanager, and the archive of the event log, are outputs, too."""
    caplog.set_level(logging.DEBUG)
    secrets, peer = SecretGenerator(), FakePeer()
    with listen("127.0.0.1", 0, what="a peer", option="") as sock:
        async with serve_app(peer, sock):
            settings = load_settings(
                defaults=DEMO_DEFAULTS | {"storage": tmp_path / "storage"},
                alerting={"alertmanager_urls": [socket_url(sock)]},
                http={"port": 0},
                otlp={"port": 0},
            )
            async with serving(settings) as running, httpx.AsyncClient(trust_env=False) as http:
                answer = await http.post(
                    f"{running.otlp_url}/v1/traces",
                    content=looping_spans(secrets).SerializeToString(),
                    headers={"content-type": "application/x-protobuf"},
                )
                assert answer.status_code == 200
                await until(lambda: peer.alerts, "an alert has arrived")
                store, health = running.service.store, running.service.settings.health_monitoring
                later = time.time() + (health.retention.days + 1) * 86_400
                pruned = await store.transact(lambda conn: prune(conn, later, health.retention))
                archive = await store.read(lambda conn: str(conn.execute(select(AUDIT_ARCHIVE)).all()))

    log = "\n".join(record.getMessage() for record in caplog.records)
    outputs = {"alerts": json.dumps(peer.posts), "archive": archive, "log": log} | list_stored_files(tmp_path)
    found = {(secret, name) for name, text in outputs.items() for secret in secrets.used if secret in text}
    assert not found
    assert pruned.archived_rows
    assert "my " in outputs["alerts"]
    assert len(secrets.used) == 6
