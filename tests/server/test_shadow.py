"""A detector in shadow mode in the whole service. Its findings are shown and have no effect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.runtime.events import EventType
from queenright.server.serving import RunningService, serving
from queenright.server.settings import InvalidSettingsError, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.server.conftest import looping

SHADOW_KINDS = {"doom_loop", "zero_progress", "retry_storm"}
IN_SHADOW = {kind.value: "shadow" for kind in FindingKind}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningService]:
    settings = load_settings(
        defaults=DEMO_DEFAULTS | {"storage": tmp_path / "storage"},
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring={"detectors": IN_SHADOW},
    )
    async with serving(settings) as running_service:
        yield running_service


async def test_shadow_findings_are_shown_and_counted_without_effect(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    service = running.service
    await service.ingest(list(looping(service.clock())))
    await service.bus.drain()

    [agent] = (await http.get("/api/agents")).json()["agents"]
    health = (await http.get("/api/agents/looper/health")).json()
    metrics = (await http.get("/metrics")).text
    events = {event.type for event in service.recent}
    worker = service.monitor.get("looper")

    assert {row["kind"] for row in agent["shadow_findings"]} >= SHADOW_KINDS
    assert (agent["findings"], agent["state"]) == ([], "healthy")
    assert {row["shadow"] for row in health["shadow_findings"]} == {True}
    assert 'queenright_shadow_findings_total{kind="doom_loop",severity="high"} 1.0' in metrics
    assert 'queenright_findings_total{kind="doom_loop",severity="high"} 0.0' in metrics
    assert events.isdisjoint({EventType.FINDING_OPENED, EventType.HEALTH_STATE_CHANGED})
    assert service.tickets.open_tickets() == []
    assert worker is not None
    assert worker.state is HealthState.HEALTHY


def test_unknown_detector_is_rejected_at_the_start_with_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "queenright.yaml"
    file.write_text("health_monitoring: {detectors: {dom_loop: off}}", encoding="utf-8")

    with pytest.raises(
        InvalidSettingsError, match=r"detectors\.dom_loop: 'dom_loop' is refused.*'doom_loop'"
    ):
        load_settings(file)


def test_detector_modes_can_be_set_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUEENRIGHT_HEALTH_MONITORING__DETECTORS", '{"token_spike": "off"}')

    assert load_settings().health_monitoring.model_dump(mode="json")["detectors"] == {"token_spike": "off"}
