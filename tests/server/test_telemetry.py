"""B90: the sender of unusable telemetry gets a notice, and operators can see the reason."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from google.protobuf.json_format import Parse
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from prometheus_client import CollectorRegistry

from queenright.api import Telemetry
from queenright.client import AsyncQueenright
from queenright.server.serving import RunningService
from queenright.server.telemetry.advice import list_advice
from queenright.server.telemetry.intake import (
    MAX_REFUSALS,
    MAX_SOURCES,
    NOTICE_INTERVAL_SECONDS,
    OTHER_PATH,
    Intake,
)
from queenright.server.telemetry.sources import (
    DIALECTS,
    OTHER_DIALECT,
    Source,
    SourceData,
    Sources,
    find_dialect,
)
from queenright.server.telemetry.unusable import RecordFault, UnusedReason
from tests import warm
from tests.clients.fixtures import BEGAN, load_fixture, move_times
from tests.clients.fixtures import FOLDER as FIXTURES

_NANO = 1_000_000_000


def make_attributes(**attributes: str | int) -> list[dict[str, Any]]:
    return [
        {
            "key": key.replace("__", "."),
            "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)},
        }
        for key, value in attributes.items()
    ]


def make_span(number: int, name: str, **attributes: str | int) -> dict[str, Any]:
    start_ns = time.time_ns() - 10 * _NANO + number
    return {
        "traceId": f"{7:032x}",
        "spanId": f"{number:016x}",
        "parentSpanId": f"{99:016x}",
        "name": name,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + 1_000_000),
        "attributes": make_attributes(**attributes),
    }


def make_traces(
    *spans: dict[str, Any], service: str = "night-graph", scope: str = "my.tracer"
) -> dict[str, Any]:
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": make_attributes(service__name=service)},
                "scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}],
            }
        ]
    }


def chat_span(number: int, **attributes: str | int) -> dict[str, Any]:
    return make_span(number, "chat m", gen_ai__operation__name="chat", **attributes)


def tool_span(number: int, **attributes: str | int) -> dict[str, Any]:
    return make_span(
        number,
        "execute_tool look",
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name="look",
        **attributes,
    )


async def send_telemetry(
    running: RunningService, body: dict[str, Any], path: str = "traces"
) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{running.otlp_url}/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


async def read_telemetry(running: RunningService) -> Telemetry:
    async with AsyncQueenright(running.url) as qr:
        return await qr.service.telemetry()


def read_counter(running: RunningService, metric: str, **labels: str) -> float:
    return running.service.registry.get_sample_value(metric, labels) or 0.0


async def test_sender_of_unused_telemetry_is_notified_occasionally(running: RunningService) -> None:
    """B90: the notice is in partial_success. None of the spans counts as rejected."""
    first_response = await send_telemetry(running, make_traces(make_span(1, "GET /"), make_span(2, "SELECT")))
    repeated_response = await send_telemetry(running, make_traces(make_span(3, "GET /")))

    Parse(json.dumps(first_response), ExportTraceServiceResponse())
    assert "'night-graph' (my.tracer)" in first_response["partialSuccess"]["errorMessage"]
    assert not int(first_response["partialSuccess"].get("rejectedSpans", 0))
    assert not repeated_response.get("partialSuccess")
    intake = await read_telemetry(running)
    [source] = intake.sources
    assert (source.service, source.dialect, source.records, source.used) == (
        "night-graph",
        OTHER_DIALECT,
        3,
        0,
    )
    assert "it sends no agent work" in [problem.missing for problem in source.missing]
    [unused_work] = intake.unused
    assert (unused_work.dialect, unused_work.reason, unused_work.count, unused_work.rejected) == (
        OTHER_DIALECT,
        "no_agent_work",
        3,
        False,
    )
    assert (
        read_counter(
            running, "queenright_telemetry_unused_total", dialect=OTHER_DIALECT, reason="no_agent_work"
        )
        == 3
    )


async def test_sender_of_metrics_only_is_shown_with_the_setting_to_change(running: RunningService) -> None:
    """B90: metrics are not read. A coding agent that sends only metrics is advised to connect."""

    def make_metrics(service: str, scope: str) -> dict[str, Any]:
        group = {"scope": {"name": scope}, "metrics": [{"name": "a"}, {"name": "b"}]}
        resource = {"attributes": make_attributes(service__name=service)}
        return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [group]}]}

    answers = [
        await send_telemetry(running, make_metrics("web", "my.meter"), "metrics"),
        await send_telemetry(running, make_metrics("claude-code", "com.anthropic.claude_code"), "metrics"),
    ]

    assert not any(answer.get("partialSuccess") for answer in answers)
    remedies = {
        source.dialect: [problem.remedy for problem in source.missing]
        for source in (await read_telemetry(running)).sources
    }
    assert remedies[OTHER_DIALECT] == ["set OTEL_TRACES_EXPORTER=otlp"]
    assert "queenright connect claude-code" in remedies["claude-code"][0]
    assert (
        read_counter(running, "queenright_telemetry_unused_total", dialect=OTHER_DIALECT, reason="metrics")
        == 2
    )


async def test_last_session_of_a_source_is_shown_with_its_work(running: RunningService) -> None:
    """A new sender can check what was read: the session, its steps, tool calls and tokens."""
    session = {"gen_ai__conversation__id": "c-1"}
    await send_telemetry(
        running,
        make_traces(
            chat_span(1, gen_ai__usage__input_tokens=7, gen_ai__usage__output_tokens=3, **session),
            tool_span(2),
        ),
    )

    [source] = (await read_telemetry(running)).sources
    assert (source.session, source.steps, source.tool_calls, source.tokens) == ("c-1", 1, 1, 10)


async def test_spans_of_other_work_are_counted_without_a_notice(
    running: RunningService,
) -> None:
    """B90: a correctly used program also makes database requests."""
    answer = await send_telemetry(running, make_traces(make_span(1, "SELECT"), chat_span(2), tool_span(3)))

    assert not answer.get("partialSuccess")
    [source] = (await read_telemetry(running)).sources
    assert (source.records, source.used, source.agents) == (3, 2, ["night-graph"])
    assert {"name", "model_calls", "tool_calls"} == set(source.shows)


async def test_unusable_records_are_rejected_with_a_remedy(running: RunningService) -> None:
    """B90: they are counted by reason and dialect, in the response, the API and the metrics."""
    invalid_span = chat_span(1) | {"traceId": "00" * 16}
    answer = await send_telemetry(
        running, make_traces(invalid_span, chat_span(2), scope="openinference.instrumentation.openai")
    )
    records = {
        "resourceLogs": [
            {
                "scopeLogs": [
                    {
                        "scope": {"name": "com.anthropic.claude_code.events"},
                        "logRecords": [{"attributes": make_attributes(event__name="api_request")}],
                    }
                ]
            }
        ]
    }
    logs = await send_telemetry(running, records, "logs")

    Parse(json.dumps(logs), ExportLogsServiceResponse())
    assert int(answer["partialSuccess"]["rejectedSpans"]) == 1
    assert "trace id" in answer["partialSuccess"]["errorMessage"]
    assert int(logs["partialSuccess"]["rejectedLogRecords"]) == 1
    assert "session.id" in logs["partialSuccess"]["errorMessage"]
    rejected_counts = {
        (item.dialect, item.reason): item.count
        for item in (await read_telemetry(running)).unused
        if item.rejected
    }
    assert rejected_counts == {("openinference", "invalid_id"): 1, ("claude-code", "no_session"): 1}
    for dialect, reason in rejected_counts:
        assert (
            read_counter(running, "queenright_telemetry_rejected_total", dialect=dialect, reason=reason) == 1
        )


async def test_advice_depends_on_the_dialect_and_the_missing_attributes(running: RunningService) -> None:
    """A new sender can check what is missing, and what to set."""
    scope = "openinference.instrumentation.langchain"
    await send_telemetry(
        running, make_traces(chat_span(1), tool_span(2), service="unknown_service", scope=scope)
    )
    bare_source = (await read_telemetry(running)).sources[0]
    conversation = {"gen_ai__conversation__id": "c-1"}
    complete_traces = make_traces(
        chat_span(3, gen_ai__usage__input_tokens=7, **conversation),
        tool_span(4, gen_ai__tool__call__arguments='{"q": 1}', **conversation),
        tool_span(5, **conversation) | {"endTimeUnixNano": "0"},
        scope=scope,
    )
    await send_telemetry(running, complete_traces)
    full_source = (await read_telemetry(running)).sources[0]

    remedies = " ".join(remedy.remedy for remedy in bare_source.missing)
    for texts in (
        "OTEL_SERVICE_NAME",
        "OPENINFERENCE_HIDE_INPUTS",
        "gen_ai.usage",
        "conversation",
        "watch_spans",
    ):
        assert texts in remedies
    assert full_source.service == "night-graph"
    assert full_source.missing == []
    assert set(full_source.shows) == set(SourceData)


async def test_refused_requests_are_listed_with_the_reason(running: RunningService) -> None:
    """An operator can see a sender with another protocol or path."""
    async with httpx.AsyncClient(trust_env=False, base_url=running.otlp_url) as http:
        for path, content in (("/v1/traces", b"{"), ("/v1/spans", b"{}"), ("/hooks/claude-code", b"[]")):
            await http.post(path, content=content, headers={"content-type": "application/json"})
        await http.post("/v1/logs", content=b"x", headers={"content-type": "application/grpc"})

    reasons = {(item.path, item.status): item.reason for item in (await read_telemetry(running)).refused}
    assert set(reasons) == {
        ("/v1/traces", 400),
        (OTHER_PATH, 404),
        ("/hooks/claude-code", 400),
        ("/v1/logs", 415),
    }
    assert "unexpected end of data" in reasons["/v1/traces", 400]


async def test_refused_requests_are_counted_by_reason(running: RunningService) -> None:
    """
    B90: this covers a hook call without a session, an unreadable body and another protocol. A 503 is not a
    loss.
    """
    count_before = running.service.registry.get_sample_value(
        "queenright_telemetry_rejected_total", {"dialect": "claude-code", "reason": "no_session"}
    )
    async with httpx.AsyncClient(trust_env=False, base_url=running.otlp_url) as http:
        await http.post("/hooks/claude-code", json={"hook_event_name": "Stop"})
        await http.post("/hooks/codex", content=b"[")
        await http.post("/v1/logs", content=b"\xff", headers={"content-type": "application/x-protobuf"})
        await http.post("/v1/traces", content=b"x", headers={"content-type": "application/grpc"})
        await http.get("/v1/metrics")
    running.service.intake.add_refusal("/v1/traces", 503, "too much at one time", time.time())

    rejected_counts = {
        (item.dialect, item.reason): item.count
        for item in (await read_telemetry(running)).unused
        if item.rejected
    }
    assert rejected_counts == {
        ("claude-code", "no_session"): 1,
        ("codex", "unreadable"): 1,
        (OTHER_DIALECT, "unreadable"): 1,
        (OTHER_DIALECT, "unsupported"): 2,
    }
    assert count_before == 0
    for (dialect, reason), count in rejected_counts.items():
        labels = {"dialect": dialect, "reason": reason}
        assert read_counter(running, "queenright_telemetry_rejected_total", **labels) == count


async def test_sender_gets_a_remedy_in_protobuf_too(running: RunningService) -> None:
    """B90: partial_success names the problem, the value and the remedy."""
    spans = ExportTraceServiceRequest()
    spans.resource_spans.add().scope_spans.add().spans.add(trace_id=b"short", span_id=b"")
    logs = ExportLogsServiceRequest()
    scope_logs = logs.resource_logs.add().scope_logs.add()
    scope_logs.scope.name = "com.anthropic.claude_code.events"
    scope_logs.log_records.add().attributes.add(key="event.name").value.string_value = "api_request"
    headers = {"content-type": "application/x-protobuf"}
    async with httpx.AsyncClient(trust_env=False, base_url=running.otlp_url, headers=headers) as http:
        traces_answer = await http.post("/v1/traces", content=spans.SerializeToString())
        logs_answer = await http.post("/v1/logs", content=logs.SerializeToString())

    traces_result = ExportTraceServiceResponse.FromString(traces_answer.content).partial_success
    logs_result = ExportLogsServiceResponse.FromString(logs_answer.content).partial_success
    assert (traces_result.rejected_spans, logs_result.rejected_log_records) == (1, 1)
    assert all(phrase in traces_result.error_message for phrase in ("5 and 0 bytes", "16 bytes"))
    assert "without session.id; set OTEL_METRICS_INCLUDE_SESSION_ID=true" in logs_result.error_message


async def test_hook_calls_belong_to_the_source_that_their_query_names(running: RunningService) -> None:
    """B90: unused hook calls are counted too."""
    call = {"session_id": "s-1", "cwd": "/home/ada/website", "hook_event_name": "SessionStart"}
    async with httpx.AsyncClient(trust_env=False, base_url=running.otlp_url) as http:
        for name in ("SessionStart", "Unheard"):
            response = await http.post(
                "/hooks/claude-code?user=ada&host=laptop", json=call | {"hook_event_name": name}
            )
            assert response.status_code == 200

    [source] = (await read_telemetry(running)).sources
    assert (source.service, source.dialect) == ("claude-code/ada@laptop", "claude-code")
    assert (source.records, source.used) == (2, 1)


@pytest.mark.parametrize("order", [1, -1])
async def test_hook_calls_logs_and_spans_of_a_coding_agent_are_one_source(
    running: RunningService, order: int
) -> None:
    """
    B90: Codex's spans, log records and hook calls name its owner differently. Together, they lack nothing.
    """
    for record in load_fixture(FIXTURES / "codex" / "healthy-traces.json").records[::order]:
        body = move_times(record.body, BEGAN, time.time() - BEGAN - 60)
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.post(running.otlp_url + record.path, json=body)).status_code == 200

    [source] = (await read_telemetry(running)).sources
    assert (source.service, source.dialect) == ("codex/workstation", "codex")
    assert source.missing == []


async def test_coding_agent_that_sends_only_spans_is_advised_to_connect(running: RunningService) -> None:
    """These spans contain nothing that is used."""
    await send_telemetry(running, make_traces(make_span(1, "turn"), service="codex_exec", scope="codex_exec"))

    [source] = (await read_telemetry(running)).sources
    [advice] = source.missing
    assert source.used == 0
    assert "queenright connect codex" in advice.remedy


async def test_telemetry_command_fails_while_a_sender_has_unused_data(running: RunningService) -> None:
    """The exit code of `queenright telemetry` reports it."""
    empty_result = await asyncio.to_thread(warm.queenright, "telemetry", "--url", running.url)
    await send_telemetry(running, make_traces(make_span(1, "GET <b>"), service="<script>"))
    unused_result = await asyncio.to_thread(warm.queenright, "telemetry", "--url", running.url)
    await send_telemetry(running, make_traces(chat_span(2), service="<script>"))
    used_result = await asyncio.to_thread(warm.queenright, "telemetry", "--url", running.url)

    assert (empty_result.returncode, unused_result.returncode, used_result.returncode) == (1, 1, 0)
    assert "Nothing has arrived" in empty_result.stdout
    assert "0 of 1 record used" in unused_result.stdout
    assert "1 of 2 records used" in used_result.stdout


@pytest.mark.parametrize(
    ("scope", "dialect"),
    [
        ("com.anthropic.claude_code.events", "claude-code"),
        ("openinference.instrumentation.langchain", "openinference"),
        ("opentelemetry.instrumentation.openai", "opentelemetry"),
        ("pydantic-ai", "logfire"),
        ("ai", "vercel-ai"),
        ("airflow", OTHER_DIALECT),
        ("", OTHER_DIALECT),
    ],
)
def test_dialect_is_derived_from_the_scope(scope: str, dialect: str) -> None:
    assert find_dialect(scope) == dialect


@given(scope=st.text())
def test_any_scope_has_a_known_dialect(scope: str) -> None:
    """Otherwise the number of label values would not be bounded."""
    assert find_dialect(scope) in DIALECTS


def test_number_of_sources_and_refusals_is_bounded() -> None:
    intake = Intake(CollectorRegistry())
    for number in range(MAX_SOURCES + 5):
        sources = Sources()
        sources.get(f"service-{number}", OTHER_DIALECT).records = 1
        intake.add(sources, float(number))
    for number in range(400, 400 + MAX_REFUSALS + 5):
        intake.add_refusal("/v1/traces", number, "no", float(number))

    assert len(list(intake.sources)) == MAX_SOURCES
    assert list(intake.sources)[-1].service == f"service-{MAX_SOURCES + 4}"
    assert len(intake.list_refusals()) == MAX_REFUSALS
    assert intake.list_refusals()[0].status == 400 + MAX_REFUSALS + 4


def test_sender_is_notified_again_after_an_hour() -> None:
    """B90: the sender is not notified with each request."""
    intake = Intake(CollectorRegistry())

    def record_request(received_at: float) -> list[str]:
        sources = Sources()
        source = sources.get("web", OTHER_DIALECT)
        source.records, source.unused[UnusedReason.NO_AGENT_WORK] = 1, 1
        return intake.add(sources, received_at)

    notices = [
        bool(record_request(clock_time))
        for clock_time in (
            1.0,
            2.0,
            NOTICE_INTERVAL_SECONDS,
            NOTICE_INTERVAL_SECONDS + 1,
            NOTICE_INTERVAL_SECONDS + 2,
        )
    ]
    assert notices == [True, False, False, True, False]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_dialect_and_problem_has_advice(dialect: str) -> None:
    for problem in (None, *RecordFault):
        source = Source("web", dialect, records=2, parts={SourceData.TOOL_CALLS})
        if problem is not None:
            source.rejected[problem] = 1
        advice = list_advice(source)

        assert advice, problem
        assert all(item.missing and item.remedy for item in advice), problem


@pytest.mark.parametrize("dialect", ["openinference", "opentelemetry", "other"])
def test_source_of_duplicate_work_gets_no_advice(dialect: str) -> None:
    """Two instrumentations of one program are both correct, but only one of them counts."""
    source = Source("web", dialect, records=2)
    source.unused.update({UnusedReason.SAME_WORK: 1, UnusedReason.REPEATED: 1})

    assert list_advice(source) == []
