"""A symptom that only Prometheus sees wakes the judge through the real Alertmanager, without a page."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import set_span_in_context
from prometheus_client import CollectorRegistry

from queenright.grafana.files import dashboards_folder
from queenright.instrumentation import Telemetry, Worker
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import Settings, load_settings
from queenright.server.up import up
from queenright.server.up_options import UpOptions
from tests.clients.fixtures import FOLDER, load_fixture
from tests.end_to_end.test_page import PAGES, count_messages
from tests.waiting import until
from tools.dashboards.queries import queries

AGENT = "night_shift"
EMPTY_PANELS = {"Time since last checkpoint", "Waiting"}
"""Panels without data, because the agent never waits and has no checkpoints."""

Query = Callable[[str], Awaitable[list[dict[str, Any]]]]
APPROVED_ALERT = {
    "labels": {
        "alertname": "QueenrightIntervention",
        "agent": "day_shift",
        "cause": "stall",
        "severity": "critical",
        "source": "queen",
        "cluster": "default",
    },
    "annotations": {"summary": "day_shift has stalled (critical)."},
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings without the demo's clock, so that only a wake-up makes the judge check."""
    return load_settings(storage=tmp_path / "storage", http={"port": 0}, otlp={"port": 0})


async def test_symptom_wakes_the_judge_without_paging(
    running_service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QueenrightRetryStorm fires with severity critical for an agent that sends metrics and no spans."""
    service, wake = running_service.service, running_service.service.judging.wake
    wakeups: list[tuple[str | None, str]] = []
    checks_before: list[float] = []

    def count_healthy_checks() -> float:
        return service.registry.get_sample_value("queenright_judge_checks_total", {"outcome": "healthy"}) or 0

    def record_wakeup(agent_id: str | None = None, reason: str = "") -> None:
        wakeups.append((agent_id, reason))
        checks_before.append(count_healthy_checks())
        wake(agent_id, reason)

    monkeypatch.setattr(service.judging, "wake", record_wakeup)
    await service.ingest(
        [
            AgentEvent(
                type=EventType.EXECUTION_STARTED,
                time=time.time(),
                agent_id=AGENT,
                session_id="s",
                data={"start_records": True, "metrics_served": True},
            )
        ]
    )
    no_spans = Telemetry.muted()

    with Worker(AGENT, telemetry=no_spans, registry=service.registry) as worker:
        for _ in range(25):
            with worker.step("packer") as step:
                step.verdict("RETRY")
        await until(lambda: wakeups != [], "the symptom in the service's webhook")
        await until(lambda: count_healthy_checks() > checks_before[0], "a check by the judge")

        async with httpx.AsyncClient(
            base_url=str(running_service.alertmanager_url), trust_env=False
        ) as client:
            response = await client.get("/api/v2/alerts", params={"filter": f"agent={AGENT}"})
            # This alert is sent later, so a page about the symptom would have arrived before its page.
            approved_response = await client.post("/api/v2/alerts", json=[APPROVED_ALERT])
        assert approved_response.is_success
        await until(
            lambda: count_messages(running_service).keys() >= PAGES.keys(),
            seconds=60,
            description="the page that the queen approved",
        )

    [symptom] = response.json()
    assert symptom["labels"]["source"] == "rules"
    assert symptom["labels"]["severity"] == "critical"
    assert symptom["receivers"] == [{"name": "judge"}]
    assert wakeups == [(AGENT, "QueenrightRetryStorm")]
    assert count_messages(running_service) == PAGES
    assert service.recorder is not None
    assert not any(AGENT in str(message.body) for message in service.recorder.messages)
    assert service.tickets.open_tickets() == []


async def wait_for_result(query: Query, expr: str, *, seconds: float = 60) -> None:
    """Wait until Prometheus has a result for ``expr``."""
    deadline = time.monotonic() + seconds
    while not await query(expr):
        assert time.monotonic() < deadline, f"Prometheus has no result for {expr} after {seconds:.0f} s"
        await asyncio.sleep(0.1)


@asynccontextmanager
async def watch_judge(
    running_service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Query, list[tuple[str | None, str]]]]:
    """Yield a Prometheus query function, and the recorded wake-ups of the judge with their targets."""
    wake = running_service.service.judging.wake
    wakeups: list[tuple[str | None, str]] = []

    def record_wakeup(agent_id: str | None = None, reason: str = "") -> None:
        wakeups.append((agent_id, reason))
        wake(agent_id, reason)

    monkeypatch.setattr(running_service.service.judging, "wake", record_wakeup)
    async with httpx.AsyncClient(base_url=str(running_service.prometheus_url), trust_env=False) as prometheus:

        async def run_query(query: str) -> list[dict[str, Any]]:
            response = (await prometheus.get("/api/v1/query", params={"query": query})).json()
            assert response["status"] == "success", response
            return list(response["data"]["result"])

        yield run_query, wakeups
        targets = (await prometheus.get("/api/v1/targets")).json()["data"]["activeTargets"]
        assert [target["labels"]["job"] for target in targets] == ["queenright"]


async def wait_for_panels(query: Query, agent: str, *, allowed: set[str]) -> None:
    """
    Wait until the `queenright_worker_...` panels of an agent's dashboard have data.

        If a scrape times out on a busy machine, all these panels are empty until the next scrape.
    """
    dashboard = json.loads((dashboards_folder() / "agent.json").read_text())
    variables = {"agent": agent, "job": ".*", "instance": ".*"}
    panel_queries = [
        query for query in queries(dashboard, variables=variables) if "queenright_worker_" in query.expr
    ]
    assert {panel_query.panel for panel_query in panel_queries} - allowed
    deadline = time.monotonic() + 60
    while (
        empty_panels := {
            panel_query.panel for panel_query in panel_queries if not await query(panel_query.expr)
        }
        - allowed
    ):
        assert time.monotonic() < deadline, f"panels without data: {empty_panels}"
        await asyncio.sleep(0.1)


async def test_symptom_of_an_agent_that_arrives_only_by_otlp_wakes_the_judge(
    running_service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prometheus scrapes only the service. The alert fires, the panels have data, and the judge wakes up."""
    telemetry = Telemetry(running_service.otlp_url)
    async with watch_judge(running_service, monkeypatch) as (query, wakeups):
        with Worker(AGENT, telemetry=telemetry, registry=CollectorRegistry()) as worker:
            for n in range(25):
                with worker.step("packer") as step:
                    with step.llm("scripted") as llm:
                        llm.usage(100, 10)
                    with step.tool("weigh", {"parcel": 7}) as call:
                        call.error(ValueError("no such parcel"))
                    step.verdict("RETRY")
                if n == 1:
                    # A counter whose first sample is 25 has not increased.
                    await wait_for_result(query, f'queenright_worker_steps_total{{agent="{AGENT}"}} > 0')
            await until(
                lambda: (AGENT, "QueenrightRetryStorm") in wakeups, "the symptom in the service's webhook"
            )
            await wait_for_result(query, f'queenright_worker_steps_since_accept{{agent="{AGENT}"}} == 25')
            calls = f'queenright_worker_tool_calls_total{{agent="{AGENT}", outcome="error"}}'
            await wait_for_result(query, f"sum({calls}) == 25")  # each call is counted once
            await wait_for_panels(query, AGENT, allowed=EMPTY_PANELS)
    telemetry.close()


@pytest.fixture
def short_stall_settings(tmp_path: Path) -> Settings:
    """Return settings with a stall limit of ten seconds."""
    stall: dict[str, Any] = dict.fromkeys(
        ("idle_seconds", "llm_seconds", "tool_seconds", "unknown_seconds"), 10
    )
    monitoring: dict[str, Any] = {"stall": stall, "health_check": {"interval_seconds": 1}}
    return load_settings(
        storage=tmp_path / "storage", http={"port": 0}, otlp={"port": 0}, health_monitoring=monitoring
    )


async def send_claude_code(url: str) -> str:
    """Send Claude Code's recorded requests of a hanging command, without the end, and return the agent."""
    fixture = load_fixture(FOLDER / "claude-code" / "hang_later.json")
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for record in fixture.moved(time.time() - fixture.ended_at):
            if record.path == "/v1/metrics" or record.body.get("hook_event_name") == "SessionEnd":
                continue
            (await client.post(record.path, json=record.body)).raise_for_status()
    return "claude-code/project"


async def send_langgraph(url: str) -> str:
    """Send OpenInference spans of an unfinished LangGraph program, and return the agent."""
    exporter = OTLPSpanExporter(f"{url}/v1/traces")
    provider = TracerProvider(resource=Resource({"service.name": "night-graph"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("openinference.instrumentation.langchain", "0.1.60")
    graph = tracer.start_span("LangGraph", attributes={"openinference.span.kind": "CHAIN"})
    for number in range(3):
        context = set_span_in_context(graph)
        model: dict[str, str | int] = {"openinference.span.kind": "LLM", "llm.model_name": "scripted"}
        model |= {"llm.token_count.prompt": 100, "llm.token_count.completion": 10}
        tracer.start_span("ChatOpenAI", context, attributes=model).end()
        tool = {"openinference.span.kind": "TOOL", "tool.name": "search"}
        tool |= {"input.value": '{"query": "bees"}', "output.value": f"page {number}"}
        tracer.start_span("search", context, attributes=tool).end()
    await asyncio.to_thread(provider.force_flush)
    return "night-graph"


@pytest.mark.parametrize("send", [send_claude_code, send_langgraph])
async def test_symptom_of_an_uninstrumented_agent_wakes_the_judge(
    short_stall_settings: Settings, send: Callable[[str], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agents are Claude Code with a hanging command, and a LangGraph program that sends nothing more."""
    options = UpOptions(demo=False, fast=True, prometheus_port=0, alertmanager_port=0, receiver_port=0)
    async with (
        up(short_stall_settings, options, say=lambda line: None) as running_service,
        watch_judge(running_service, monkeypatch) as (query, wakeups),
    ):
        agent = await send(str(running_service.otlp_url))
        await wait_for_result(query, f'queenright_worker_info{{agent="{agent}"}}')
        await until(
            lambda: (agent, "QueenrightWorkerStalledInPhase") in wakeups,
            "the symptom in the service's webhook",
            seconds=120,
        )
        allowed = EMPTY_PANELS | {"Time since last heartbeat", "Errors by class"}
        await wait_for_panels(query, agent, allowed=allowed)
