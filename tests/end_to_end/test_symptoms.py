"""A symptom that only Prometheus sees wakes the judge, by way of the real Alertmanager, and pages nobody."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from queenright.grafana.files import dashboards_folder
from queenright.grafana.queries import queries
from queenright.instrumentation import Telemetry, Worker
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.settings import Settings, load_settings
from queenright.server.up import Running
from tests.end_to_end.test_page import ONE_EACH, received
from tests.waiting import until

AGENT = "night_shift"
NOT_SAID = {"Since its last checkpoint", "Waiting"}
"""Panels of what this agent never does."""

Query = Callable[[str], Awaitable[list[dict[str, Any]]]]
APPROVED = {
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
    """Not the demo's clock: for as long as the test takes, the judge looks only when it is woken."""
    return load_settings(storage=tmp_path / "storage", http={"port": 0}, otlp={"port": 0})


async def test_a_symptom_wakes_the_judge_and_pages_nobody(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QueenrightRetryStorm at its most severe, of an agent whose metrics arrive and whose spans do not."""
    service, wake = running.service, running.service.judging.wake
    woken: list[tuple[str | None, str]] = []
    checks_before: list[float] = []

    def checks() -> float:
        return service.registry.get_sample_value("queenright_judge_checks_total", {"outcome": "healthy"}) or 0

    def recorded(agent_id: str | None = None, reason: str = "") -> None:
        woken.append((agent_id, reason))
        checks_before.append(checks())
        wake(agent_id, reason)

    monkeypatch.setattr(service.judging, "wake", recorded)
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
        await until(lambda: woken != [], "the symptom in the service's webhook")
        await until(lambda: checks() > checks_before[0], "a look of the judge")

        async with httpx.AsyncClient(base_url=str(running.alertmanager_url), trust_env=False) as client:
            answer = await client.get("/api/v2/alerts", params={"filter": f"agent={AGENT}"})
            # The same way, begun later: once this has reached people, the symptom would have long ago.
            approved = await client.post("/api/v2/alerts", json=[APPROVED])
        assert approved.is_success
        await until(
            lambda: received(running).keys() >= ONE_EACH.keys(), seconds=60, what="what the queen approved"
        )

    [symptom] = answer.json()
    assert symptom["labels"]["source"] == "rules"
    assert symptom["labels"]["severity"] == "critical"
    assert symptom["receivers"] == [{"name": "judge"}]
    assert woken == [(AGENT, "QueenrightRetryStorm")]
    assert received(running) == ONE_EACH
    assert service.recorder is not None
    assert not any(AGENT in str(message.body) for message in service.recorder.received)
    assert service.tickets.open_tickets() == []


async def until_answered(query: Query, expr: str, *, seconds: float = 60) -> None:
    """Return as soon as Prometheus has an answer to ``expr``."""
    deadline = time.monotonic() + seconds
    while not await query(expr):
        assert time.monotonic() < deadline, f"within {seconds:.0f} s: an answer to {expr}"
        await asyncio.sleep(0.1)


async def test_symptom_of_an_agent_that_arrives_only_by_otlp_wakes_the_judge(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its alert fires, the panels answer, the judge is woken; Prometheus scrapes the service only."""
    wake = running.service.judging.wake
    woken: list[tuple[str | None, str]] = []

    def recorded(agent_id: str | None = None, reason: str = "") -> None:
        woken.append((agent_id, reason))
        wake(agent_id, reason)

    monkeypatch.setattr(running.service.judging, "wake", recorded)
    telemetry = Telemetry(running.otlp_url)
    async with httpx.AsyncClient(base_url=str(running.prometheus_url), trust_env=False) as prometheus:

        async def answer(query: str) -> list[dict[str, Any]]:
            found = (await prometheus.get("/api/v1/query", params={"query": query})).json()
            assert found["status"] == "success", found
            return list(found["data"]["result"])

        with Worker(AGENT, telemetry=telemetry, registry=CollectorRegistry()) as worker:
            for n in range(25):
                with worker.step("packer") as step:
                    with step.llm("scripted") as llm:
                        llm.usage(100, 10)
                    with step.tool("weigh", {"parcel": 7}) as call:
                        call.error(ValueError("no such parcel"))
                    step.verdict("RETRY")
                if n == 1:
                    # A counter that is first seen at 25 has not increased.
                    await until_answered(answer, f'queenright_worker_steps_total{{agent="{AGENT}"}} > 0')
            await until(
                lambda: (AGENT, "QueenrightRetryStorm") in woken, "the symptom in the service's webhook"
            )

            targets = (await prometheus.get("/api/v1/targets")).json()["data"]["activeTargets"]
            assert [target["labels"]["job"] for target in targets] == ["queenright"]
            await until_answered(answer, f'queenright_worker_steps_since_accept{{agent="{AGENT}"}} == 25')
            [calls] = await answer(
                f'sum(queenright_worker_tool_calls_total{{agent="{AGENT}", outcome="error"}})'
            )
            assert calls["value"][1] == "25", "each call is counted once"
            dashboard = json.loads((dashboards_folder() / "agent.json").read_text())
            variables = {"agent": AGENT, "job": ".*", "instance": ".*"}
            asked = [
                query
                for query in queries(dashboard, variables=variables)
                if "queenright_worker_" in query.expr
            ]
            empty = [query.panel for query in asked if not await answer(query.expr)]
            assert len(asked) > len(empty)
            assert set(empty) <= NOT_SAID, "panels that this agent does not fill"
    telemetry.close()
