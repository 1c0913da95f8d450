"""A symptom that only Prometheus sees wakes the judge, by way of the real Alertmanager, and pages nobody."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from queenright.instrumentation import Telemetry, Worker
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.settings import Settings, load_settings
from queenright.server.up import Running
from tests.end_to_end.test_page import ONE_EACH, received
from tests.waiting import until

AGENT = "night_shift"
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
        [AgentEvent(type=EventType.EXECUTION_STARTED, time=time.time(), agent_id=AGENT, session_id="s")]
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
