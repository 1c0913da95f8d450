"""B129: a secret in any input field appears in no output. Names are masked like other texts."""

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
from queenright.server.ops.sockets import listen, make_socket_url, serve_app
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.telemetry.dialects import ATTRIBUTES
from queenright.server.telemetry.logs import RECORD_READERS
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
        self.used_secrets: list[str] = []

    def generate_key(self) -> str:
        number = len(self.used_secrets)
        shapes = (
            f"sk-{number:05d}abcdefghijklmnopqrst",
            f"ghp_{number:05d}AbCdEfGhIjKlMnOpQrSt",
            f"AKIA{number:05d}ABCDEFGHIJK",
            f"Zq3/{number:05d}aB9cD2eF+5gH7iJ1kL4mN8oP0qR6sTU",
        )
        self.used_secrets.append(shapes[number % len(shapes)])
        assert len(self.used_secrets[-1]) >= 16
        return self.used_secrets[-1]

    def generate_text(self) -> str:
        return f"my {self.generate_key()} key"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    base_settings = demo_settings(tmp_path / "storage", orchestrator="none")
    return base_settings.model_copy(update={"step_logs": (tmp_path / "workers",)})


def make_attributes(secrets: SecretGenerator, **extra_attributes: str) -> Iterator[KeyValue]:
    """Yield each attribute that is read, each with a different secret, and the additional attributes."""
    for field, spellings in ATTRIBUTES.items():
        for key in spellings:
            if field not in ("operation", "marker", "event", "verdict"):
                yield KeyValue(key=key, value=AnyValue(string_value=secrets.generate_text()))
    for key, value in extra_attributes.items():
        yield KeyValue(key=key, value=AnyValue(string_value=value))


def make_resource(secrets: SecretGenerator) -> list[KeyValue]:
    keys = {*RESOURCE_ATTRIBUTES.values(), *PROCESS_ATTRIBUTES} - {names.INCARNATION_ID}
    return [KeyValue(key=key, value=AnyValue(string_value=secrets.generate_text())) for key in sorted(keys)]


def make_spans(secrets: SecretGenerator, first_id: int) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.extend(make_resource(secrets))
    scope = group.scope_spans.add()
    scope.scope.name, scope.scope.version = secrets.generate_text(), secrets.generate_text()
    now_ns = time.time_ns()
    for number, (name, operation) in enumerate(_KINDS.items(), first_id):
        span = Span(
            name=f"{name} {secrets.generate_key()}",
            trace_id=(number + 1).to_bytes(16, "big"),
            span_id=(number + 1).to_bytes(8, "big"),
            start_time_unix_nano=now_ns - _NANO,
            end_time_unix_nano=now_ns,
            status=Status(code=Status.STATUS_CODE_ERROR, message=secrets.generate_text()),
        )
        span_attributes = (
            {names.GEN_AI_OPERATION_NAME: operation} if operation else {names.STEP_VERDICT: "RETRY"}
        )
        span.attributes.extend(make_attributes(secrets, **span_attributes))
        event = span.events.add(name="exception")
        event.attributes.append(
            KeyValue(key="exception.type", value=AnyValue(string_value=secrets.generate_text()))
        )
        event.attributes.append(
            KeyValue(key="exception.message", value=AnyValue(string_value=secrets.generate_text()))
        )
        scope.spans.append(span)
    return request


def make_records(secrets: SecretGenerator) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.extend(make_resource(secrets))
    scope = group.scope_logs.add()
    scope.scope.name, scope.scope.version = secrets.generate_text(), secrets.generate_text()
    for name in RECORD_READERS:
        record = scope.log_records.add(time_unix_nano=time.time_ns())
        record.event_name = name
        record.attributes.extend(make_attributes(secrets))
    return request


async def post_otlp(http: httpx.AsyncClient, running: RunningService, secrets: SecretGenerator) -> None:
    protobuf_spans = make_spans(secrets, 0)
    json_spans = make_spans(secrets, 100)
    proto = {"content-type": "application/x-protobuf"}
    for path, body, headers in (
        ("traces", protobuf_spans.SerializeToString(), proto),
        ("traces", json.dumps(encode_json(json_spans)).encode(), {"content-type": "application/json"}),
        ("logs", make_records(secrets).SerializeToString(), proto),
    ):
        response = await http.post(f"{running.otlp_url}/v1/{path}", content=body, headers=headers)
        assert response.status_code == 200, response.text


def encode_json(request: ExportTraceServiceRequest) -> dict[str, Any]:
    document = MessageToDict(request)
    for group in document["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for number, span in enumerate(scope["spans"], 101):
                span["traceId"], span["spanId"] = f"{number:032x}", f"{number:016x}"
    return dict(document)


def write_step_log(folder: Path, secrets: SecretGenerator) -> None:
    row = {
        "agent_id": secrets.generate_text(),
        "session_id": secrets.generate_key(),
        "incarnation_id": secrets.generate_key(),
        "graph_id": secrets.generate_text(),
        "node_id": secrets.generate_text(),
        "trace_id": secrets.generate_key(),
        "span_id": secrets.generate_key(),
        "step_index": 1,
        "verdict": "RETRY",
        "ended_at": time.time(),
        "error_type": secrets.generate_text(),
        "error": secrets.generate_text(),
        "feedback": secrets.generate_text(),
        "tool_calls": [
            {
                "tool_name": secrets.generate_text(),
                "call_id": secrets.generate_key(),
                "error_type": secrets.generate_text(),
                "error": secrets.generate_text(),
                "outcome": "error",
                "args_hash": secrets.generate_key(),
                "result_hash": secrets.generate_key(),
            }
        ],
    }
    log = folder / "sessions" / "session-1" / "logs" / "tool_logs.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(json.dumps(row) + "\n")


def run_worker(endpoint: str, storage: Path, secrets: SecretGenerator) -> bytes:
    """Work as an instrumented agent with a secret in each name, and return its metrics page."""
    registry = CollectorRegistry()
    failure = type(secrets.generate_key().replace("/", "_"), (Exception,), {})
    with Worker(
        secrets.generate_text(),
        endpoint=endpoint,
        storage=storage,
        registry=registry,
        graph_id=secrets.generate_text(),
        framework=secrets.generate_text(),
        version=secrets.generate_text(),
    ) as worker:
        with worker.step(secrets.generate_text()) as step:
            with step.llm(secrets.generate_text(), secrets.generate_text()):
                pass
            with (
                pytest.raises(failure),
                step.tool(secrets.generate_text(), {"q": 1}, call_id=secrets.generate_key()),
            ):
                raise failure(secrets.generate_text())
            step.verdict("RETRY", secrets.generate_text())
        worker.checkpoint(secrets.generate_text())
    return generate_latest(registry)


async def post_api(http: httpx.AsyncClient, secrets: SecretGenerator) -> list[httpx.Response]:
    heartbeat = {
        "session_id": secrets.generate_key().replace("/", "_"),
        "incarnation_id": secrets.generate_key(),
    }
    return [
        await http.post(f"/api/agents/{secrets.generate_key().replace('/', '_')}/heartbeat", json=heartbeat),
        await http.post(
            "/api/agents/nobody/nudge",
            json={"message": secrets.generate_text(), "by": secrets.generate_key()},
        ),
        await http.get(f"/api/agents/{secrets.generate_key().replace('/', '_')}/health"),
        await http.get("/api/tickets", params={"agent": secrets.generate_key()}),
    ]


async def read_stream(http: httpx.AsyncClient) -> str:
    """Return the text of the event stream up to now."""
    result = ""
    try:
        async with asyncio.timeout(2), http.stream("GET", "/api/events") as answer:
            async for chunk in answer.aiter_text():
                result += chunk
    except TimeoutError:
        pass
    return result


def list_stored_files(folder: Path) -> dict[str, str]:
    """Return the stored files, except the step log, which the worker itself wrote."""
    files = [path for path in folder.rglob("*") if path.is_file() and "workers" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes().decode("utf-8", "replace") for path in files}


async def test_secret_in_any_input_appears_in_no_output(
    running: RunningService, http: httpx.AsyncClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B129: the outputs are the database, the API, the event stream, the metrics, the pages and the log."""
    caplog.set_level(logging.DEBUG)
    secrets = SecretGenerator()
    stream_task = asyncio.create_task(read_stream(http))
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
    events = await stream_task
    await running.service.store.read(lambda conn: conn.exec_driver_sql("SELECT 1").fetchall())

    outputs: dict[str, str] = {path: answer.text for path, answer in response.items()}
    outputs |= {f"answer {number}": answer.text for number, answer in enumerate(answers)}
    outputs["the agent's metrics"] = agents_page.decode()
    outputs["the event stream"] = events
    # Exclude the test's own HTTP client, which logs its URLs.
    other_records = [
        record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
    ]
    outputs["the log"] = "\n".join(other_records)
    outputs |= list_stored_files(tmp_path)
    leaks = {
        (secret, name)
        for name, output in outputs.items()
        for secret in secrets.used_secrets
        if secret in output
    }
    assert not leaks
    assert len(secrets.used_secrets) > 200


def make_looping_spans(secrets: SecretGenerator) -> ExportTraceServiceRequest:
    """Return spans of an agent that repeats one call for minutes, with a secret in each name and text."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    now_ns = time.time_ns()
    texts = {
        names.GEN_AI_AGENT_NAME: secrets.generate_text(),
        names.GEN_AI_CONVERSATION_ID: secrets.generate_key(),
    }
    texts |= {names.INCARNATION_ID: "life-1", names.NODE_ID: secrets.generate_text()}
    call = {
        names.GEN_AI_OPERATION_NAME: "execute_tool",
        names.GEN_AI_TOOL_NAME: secrets.generate_text(),
        names.TOOL_ARGUMENTS_HASH: "a" * 16,
        names.TOOL_RESULT_HASH: "b" * 16,
        "error.type": secrets.generate_text(),
    }
    message = secrets.generate_text()
    for step in range(20):
        step_start = now_ns - (20 - step) * 20 * _NANO
        attribute_sets = (call | {names.GEN_AI_TOOL_CALL_ID: f"call-{step}"}, {names.STEP_VERDICT: "RETRY"})
        for number, (name, attributes) in enumerate(
            zip((f"execute_tool {message}", "step"), attribute_sets, strict=True)
        ):
            span = scope.spans.add(
                name=name,
                trace_id=b"t" * 16,
                span_id=(1 + 2 * step + number).to_bytes(8, "big"),
                start_time_unix_nano=step_start,
                end_time_unix_nano=step_start + _NANO,
                status=Status(code=Status.STATUS_CODE_ERROR, message=message),
            )
            span.attributes.extend(
                KeyValue(key=key, value=AnyValue(string_value=value))
                for key, value in (texts | attributes).items()
            )
    return request


async def test_alert_and_archive_contain_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B129: alerts to Alertmanager and the archive of the event log are outputs too."""
    caplog.set_level(logging.DEBUG)
    secrets, peer = SecretGenerator(), FakePeer()
    with listen("127.0.0.1", 0, what="a peer", option="") as sock:
        async with serve_app(peer, sock):
            settings = load_settings(
                defaults=DEMO_DEFAULTS | {"storage": tmp_path / "storage"},
                alerting={"alertmanager_urls": [make_socket_url(sock)]},
                http={"port": 0},
                otlp={"port": 0},
            )
            async with serving(settings) as running, httpx.AsyncClient(trust_env=False) as http:
                response = await http.post(
                    f"{running.otlp_url}/v1/traces",
                    content=make_looping_spans(secrets).SerializeToString(),
                    headers={"content-type": "application/x-protobuf"},
                )
                assert response.status_code == 200
                await until(lambda: peer.alerts, "an alert has arrived")
                store, health = running.service.store, running.service.settings.health_monitoring
                prune_time = time.time() + (health.retention.days + 1) * 86_400
                prune_result = await store.transact(lambda conn: prune(conn, prune_time, health.retention))
                archive = await store.read(lambda conn: str(conn.execute(select(AUDIT_ARCHIVE)).all()))

    log = "\n".join(record.getMessage() for record in caplog.records)
    outputs = {"alerts": json.dumps(peer.posts), "archive": archive, "log": log} | list_stored_files(tmp_path)
    leaks = {
        (secret, name)
        for name, output in outputs.items()
        for secret in secrets.used_secrets
        if secret in output
    }
    assert not leaks
    assert prune_result.archived_rows
    assert "my " in outputs["alerts"]
    assert len(secrets.used_secrets) == 6
