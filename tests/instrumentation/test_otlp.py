"""OTLP over real HTTP, and the application's own providers."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from queenright.instrumentation import Telemetry, Worker, names
from queenright.instrumentation.drop_counter import DROPPED
from queenright.instrumentation.error_guard import warn_once
from queenright.instrumentation.telemetry import ApplicationLogs
from tests.instrumentation.parts import Clock, Otlp, Script, read_attributes, wait_for


def test_spans_and_start_records_arrive_by_http(
    otlp: Otlp, registry: CollectorRegistry, clock: Clock
) -> None:
    telemetry = Telemetry(otlp.url)
    with Worker("bee", session_id="s1", telemetry=telemetry, registry=registry, clock=clock) as worker:
        with worker.step("forager") as step, step.tool("search", {"q": 1}, timeout=5) as call:
            clock.now += 2
            call.result("x")
            step.verdict("ACCEPT")
        with pytest.raises(KeyError), worker.step("forager"):
            raise KeyError("gone")

    assert telemetry.flush(10)

    spans = {span.name: span for span in otlp.spans}
    tool = spans["execute_tool search"]
    assert tool.end_time_unix_nano - tool.start_time_unix_nano == 2_000_000_000
    assert read_attributes(tool)[names.TOOL_TIMEOUT] == 5.0
    assert spans["step forager"].status.message == "'gone'"
    assert spans["step forager"].status.code == 2
    start_record = next(record for record in otlp.logs if record.event_name == names.EVENT_TOOL_STARTED)
    assert (start_record.trace_id, start_record.span_id) == (tool.trace_id, tool.span_id)
    assert start_record.time_unix_nano == tool.start_time_unix_nano
    assert read_attributes(start_record)[names.GEN_AI_CONVERSATION_ID] == "s1"
    telemetry.close()


def test_missing_token_error_names_the_variable(
    otlp: Otlp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warn_once, "has_warned", False)
    otlp.status = 401
    telemetry = Telemetry(otlp.url, interval=0.02)
    telemetry.tracer.start_span("step").end()

    telemetry.close()

    assert "HTTP status 401: set OTEL_EXPORTER_OTLP_HEADERS to" in caplog.text


def test_records_are_delivered_after_a_service_restart(otlp: Otlp, registry: CollectorRegistry) -> None:
    """B76: the service answers 503 for a while."""
    otlp.status = 503
    telemetry = Telemetry(otlp.url, interval=0.02)
    with Worker("bee", telemetry=telemetry, registry=registry) as worker, worker.step("forager"):
        pass
    assert wait_for(lambda: otlp.requests >= 2)

    otlp.status = 200

    assert wait_for(lambda: {span.name for span in otlp.spans} == {"step forager", "invoke_agent bee"})
    telemetry.close()


def test_unencodable_item_is_dropped_without_others(
    otlp: Otlp, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """B81: one invalid attribute neither loses the batch nor fills the log."""
    before = DROPPED.get_count("spans")
    telemetry = Telemetry(otlp.url)
    invalid_span = telemetry.tracer.start_span("\ud800")
    invalid_span.end()
    telemetry.tracer.start_span("good", attributes={"odd": object()}).end()  # type: ignore[dict-item]

    assert telemetry.flush(10)

    assert [span.name for span in otlp.spans] == ["good"]
    assert DROPPED.get_count("spans") - before == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    telemetry.close()


def test_provider_of_the_application_gets_the_spans(registry: CollectorRegistry) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracer_provider=provider, records=False)

    with Worker("bee", telemetry=telemetry, registry=registry) as worker, worker.step("forager") as step:
        step.verdict("ACCEPT")

    step_span, run = exporter.get_finished_spans()
    assert (step_span.name, run.name) == ("step forager", "invoke_agent bee")
    assert step_span.attributes is not None
    assert step_span.attributes[names.STEP_VERDICT] == "ACCEPT"
    telemetry.close(0.1)
    provider.shutdown()


def test_logger_provider_of_the_application_gets_the_start_records(registry: CollectorRegistry) -> None:
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    telemetry = Telemetry(connect=lambda: ApplicationLogs(provider.get_logger("queenright")))

    with Worker("bee", telemetry=telemetry, registry=registry):
        telemetry.flush()

    [record] = exporter.get_finished_logs()
    assert record.log_record.event_name == names.EVENT_AGENT_STARTED
    telemetry.close()
    provider.shutdown()


def test_start_records_have_the_resource_of_the_application_provider(
    otlp: Otlp, registry: CollectorRegistry
) -> None:
    """Spans, which the provider exports, and records must belong to the same service and process."""
    provider = TracerProvider(resource=Resource.create({names.SERVICE_NAME: "shop"}), shutdown_on_exit=False)
    telemetry = Telemetry(otlp.url, tracer_provider=provider)

    with Worker("bee", telemetry=telemetry, registry=registry):
        telemetry.flush()

    assert otlp.log_services == ["shop"]
    telemetry.close()


def test_unconfigured_process_uses_the_environment_endpoint(otlp: Otlp, run_script: Script) -> None:
    result = run_script(
        """
from queenright.instrumentation import Worker
with Worker("bee") as worker, worker.step("forager"):
    pass
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert [span.name for span in otlp.spans] == ["step forager", "invoke_agent bee"]


def test_process_with_its_own_opentelemetry_setup_keeps_its_pipeline(otlp: Otlp, run_script: Script) -> None:
    result = run_script(
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
exporter = ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
from queenright.instrumentation import Worker
with trace.get_tracer("app").start_as_current_span("request"):
    with Worker("bee") as worker, worker.step("forager"):
        pass
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split("\n")[:3] == ["step forager", "invoke_agent bee", "request"]
    assert otlp.spans == []
    assert {record.event_name for record in otlp.logs} == {
        names.EVENT_AGENT_STARTED,
        names.EVENT_STEP_STARTED,
    }
