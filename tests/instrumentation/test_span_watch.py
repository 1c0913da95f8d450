"""`watch_spans` and the entry point of `opentelemetry-instrument`, in processes with a real OTLP server."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from queenright.instrumentation import names, span_watch, watch_spans
from queenright.instrumentation.otlp import DEFAULT_ENDPOINT, OtlpSender, get_logs_url
from tests.instrumentation.parts import Otlp, Script, read_attributes
from tests.instrumentation.test_agent_isolation import get_closed_port_url

SETUP = """
import os, time
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider = TracerProvider(resource=Resource.create({"service.name": "hive"}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=1)))
trace.set_tracer_provider(provider)
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o"}
AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "bee"}
tracer = trace.get_tracer("any.library")

def hang(spans):
    # Wait until this many open spans are reported; without a processor, longer than that takes.
    from queenright.instrumentation import span_watch
    processors = [reference() for reference in span_watch._watchers._by_provider.values()]
    deadline = time.monotonic() + (60 if processors else 1)
    while sum(len(processor._reports) for processor in processors) < spans and time.monotonic() < deadline:
        time.sleep(0.01)
"""

WATCH = SETUP + "from queenright.instrumentation import watch_spans\nassert watch_spans()\n"

HANG = """
with tracer.start_as_current_span("invoke_agent bee", attributes=AGENT):
    with tracer.start_as_current_span("chat gpt-4o", attributes=CHAT):
        hang(2)
"""


def list_reported_names(otlp: Otlp) -> list[tuple[str, str]]:
    return [
        (record.event_name, str(read_attributes(record)[names.OPEN_SPAN_NAME]))
        for record in sorted(otlp.logs, key=lambda record: int(record.time_unix_nano))
    ]


def test_open_work_of_any_library_arrives_by_http(otlp: Otlp, run_script: Script) -> None:
    """B88: one line of code is enough for any library."""
    result = run_script(WATCH + HANG, OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url)

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert list_reported_names(otlp) == [
        (names.EVENT_SPAN_STARTED, "invoke_agent bee"),
        (names.EVENT_SPAN_STARTED, "chat gpt-4o"),
        (names.EVENT_SPAN_ENDED, "chat gpt-4o"),
        (names.EVENT_SPAN_ENDED, "invoke_agent bee"),
    ]
    spans = {span.name: span for span in otlp.spans}
    assert {(record.trace_id, record.span_id) for record in otlp.logs} == {
        (span.trace_id, span.span_id) for span in spans.values()
    }
    assert otlp.logs[0].time_unix_nano == spans["invoke_agent bee"].start_time_unix_nano
    assert (
        read_attributes(otlp.logs[0])[names.OPEN_SPAN_START] == spans["invoke_agent bee"].start_time_unix_nano
    )


def test_process_that_exits_inside_a_call_reports_its_end(otlp: Otlp, run_script: Script) -> None:
    result = run_script(
        WATCH + 'call = tracer.start_span("chat gpt-4o", attributes=CHAT)\nhang(1)\n',
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert list_reported_names(otlp) == [
        (names.EVENT_SPAN_STARTED, "chat gpt-4o"),
        (names.EVENT_SPAN_ENDED, "chat gpt-4o"),
    ]
    assert read_attributes(otlp.logs[-1])[names.OPEN_SPAN_OUTCOME] == "unknown"
    assert otlp.spans == []


def test_forked_child_reports_its_own_calls(otlp: Otlp, run_script: Script) -> None:
    result = run_script(
        WATCH
        + """
with tracer.start_as_current_span("invoke_agent parent", attributes=AGENT):
    hang(1)
    if os.fork() == 0:
        with tracer.start_as_current_span("chat child", attributes=CHAT):
            hang(1)
        provider.shutdown()
        os._exit(0)
    os.wait()
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert list_reported_names(otlp) == [
        (names.EVENT_SPAN_STARTED, "invoke_agent parent"),
        (names.EVENT_SPAN_STARTED, "chat child"),
        (names.EVENT_SPAN_ENDED, "chat child"),
        (names.EVENT_SPAN_ENDED, "invoke_agent parent"),
    ]


def test_provider_without_an_instance_id_gives_records_their_own_resource(otlp: Otlp) -> None:
    """Records and spans belong to one process: the service reads the incarnation from either."""
    resources: list[Resource] = []

    class Sender(OtlpSender):
        def __init__(self, endpoint: str, resource: Resource, **options: Any) -> None:
            resources.append(resource)
            super().__init__(endpoint, resource, **options)

    provider = TracerProvider(resource=Resource({"service.name": "hive"}), shutdown_on_exit=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_watch, "OtlpSender", Sender)
        sender = span_watch._connect(provider, otlp.url)()

    sender.close()
    assert resources == [provider.resource]


def test_unavailable_service_is_logged_in_one_line(run_script: Script) -> None:
    """B81: neither the work nor the exit is delayed."""
    result = run_script(
        WATCH
        + """
slowest = 0.0
calls = []
for number in range(2000):
    before = time.monotonic()
    calls.append(tracer.start_span("chat gpt-4o", attributes=CHAT))
    if number % 2:
        calls.pop().end()
    slowest = max(slowest, time.monotonic() - before)
hang(1000)
for call in calls:
    call.end()
end_time = time.monotonic()
from queenright.instrumentation import span_watch
span_watch._watchers.close()
print(slowest < 0.5, time.monotonic() - end_time < 3, flush=True)
os._exit(0)  # skip the exit handlers of the application's own exporter
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=get_closed_port_url(),
    )

    assert result.stdout.strip() == "True True"
    assert [line for line in result.stderr.splitlines() if line.startswith("Queenright")] != []
    assert len([line for line in result.stderr.splitlines() if line.startswith("Queenright")]) == 1


def test_second_call_adds_no_second_processor(otlp: Otlp) -> None:
    provider = TracerProvider(shutdown_on_exit=False)

    assert watch_spans(provider, endpoint=otlp.url)
    assert watch_spans(provider, endpoint=otlp.url)

    assert len(provider._active_span_processor._span_processors) == 1
    provider.shutdown()
    assert watch_spans(provider, endpoint=otlp.url)
    assert len(provider._active_span_processor._span_processors) == 2
    provider.shutdown()


def test_missing_tracer_provider_warns_with_a_fix(run_script: Script) -> None:
    result = run_script(
        "from queenright.instrumentation import watch_spans\nprint(watch_spans(), watch_spans(object()))\n",
    )

    assert result.stdout.strip() == "False False"
    assert "watch_spans(provider)" in result.stderr


def test_grpc_process_uses_its_own_log_exporter(otlp: Otlp, run_script: Script) -> None:
    """The service does not accept gRPC; a Collector that does receives the records like the spans."""
    result = run_script(
        SETUP
        + """
from opentelemetry._logs import set_logger_provider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
exporter, logs = InMemoryLogRecordExporter(), LoggerProvider()
logs.add_log_record_processor(SimpleLogRecordProcessor(exporter))
set_logger_provider(logs)
from queenright.instrumentation import watch_spans
assert watch_spans()
"""
        + HANG
        + """
provider.force_flush()
print(*[record.log_record.event_name for record in exporter.get_finished_logs()])
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [names.EVENT_SPAN_STARTED] * 2 + [names.EVENT_SPAN_ENDED] * 2
    assert otlp.logs == []


@pytest.mark.parametrize(
    ("environment", "argument", "url"),
    [
        ({}, None, f"{DEFAULT_ENDPOINT}/v1/logs"),
        ({"ENDPOINT": "http://a:1/"}, None, "http://a:1/v1/logs"),
        ({"ENDPOINT": "http://a:1", "LOGS_ENDPOINT": "http://b:2/logs"}, None, "http://b:2/logs"),
        ({"ENDPOINT": "http://a:1", "TRACES_ENDPOINT": "http://b:2/v1/traces"}, None, "http://a:1/v1/logs"),
        ({"TRACES_ENDPOINT": "http://b:2/v1/traces"}, None, "http://b:2/v1/logs"),
        ({"ENDPOINT": "http://a:1", "LOGS_ENDPOINT": "http://b:2/logs"}, "http://c:3", "http://c:3/v1/logs"),
    ],
)
def test_records_follow_opentelemetry_endpoint_variables(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], argument: str | None, url: str
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)

    assert get_logs_url(argument) == url


@pytest.mark.parametrize(
    ("exporters", "records"),
    [("", True), ("otlp", True), ("console,otlp_proto_http", True), ("console", False)],
)
def test_auto_instrumentation_watches_otlp_exporters(
    otlp: Otlp, run_script: Script, exporters: str, records: bool
) -> None:
    """`opentelemetry-instrument` loads our entry point in this way, after it has configured the process."""
    result = run_script(
        SETUP
        + """
from importlib.metadata import entry_points
[found] = entry_points(group="opentelemetry_instrumentor", name="queenright")
found.load()().instrument(skip_dep_check=True)
"""
        + HANG,
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
        **({"OTEL_TRACES_EXPORTER": exporters} if exporters else {}),
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert bool(otlp.logs) is records


def test_auto_instrumentation_without_a_provider_logs_nothing(run_script: Script) -> None:
    result = run_script(
        "from queenright.instrumentation.span_watch import SpanWatchInstrumentor\n"
        "SpanWatchInstrumentor().instrument()\n"
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_entry_point_is_declared() -> None:
    [entry_point] = entry_points(group="opentelemetry_instrumentor", name="queenright")

    assert entry_point.load() is span_watch.SpanWatchInstrumentor
