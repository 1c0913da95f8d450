"""The service's version, settings, event log and reload, and the timeline of a ticket."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.cli.jobs.service import reload_on_sighup
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Severity
from queenright.health.store.tables import SCHEMA_REVISION
from queenright.health.tickets.ticket import TicketDraft
from queenright.server.serving import RunningService, serving
from queenright.server.settings import HttpSettings, OtlpSettings, Settings, load_settings
from tests.server.conftest import looping
from tests.waiting import until

SETTINGS_TEMPLATE = """\
storage: {storage}
http: {{port: 0}}
otlp: {{port: 0}}
alerting:
  runbook_url: {runbooks}
health_monitoring:
  judge: {{interval_seconds: {judge}, start_grace_seconds: 0}}
  bands: {{warning: {warning}, medium: 40, high: 50, critical: 60}}
  stall: {{idle_seconds: 100000, llm_seconds: 100000, tool_seconds: 100000, unknown_seconds: 100000}}
  tickets: {{hold_seconds: {hold}}}
"""


class SettingsFile:
    """A settings file that tests change."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "queenright.yaml"
        self._values: dict[str, Any] = {"storage": folder / "storage", "runbooks": "https://a.example"}
        self.write(judge=3600, warning=30, hold=120)

    def write(self, **values: Any) -> None:
        self._values |= values
        self.path.write_text(SETTINGS_TEMPLATE.format(**self._values), encoding="utf-8")


@pytest.fixture
def file(tmp_path: Path) -> SettingsFile:
    return SettingsFile(tmp_path)


@pytest.fixture
def settings(file: SettingsFile) -> Settings:
    return load_settings(file.path)


@pytest.fixture
async def running(settings: Settings) -> AsyncIterator[RunningService]:
    async with serving(settings) as running_service:
        yield running_service


# -- version, settings, log -----------------------------------------------------------------------


async def test_service_reports_its_version_settings_and_log(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """These are in one test because the start of a service takes a second."""
    version = (await http.get("/api/version")).json()
    body = (await http.get("/api/settings")).json()

    assert version["schema_revision"] == SCHEMA_REVISION
    assert version["started_at"] == running.service.started_at
    assert body["settings"]["health_monitoring"]["bands"]["warning"] == 30
    assert "health_monitoring.bands" in body["reloadable"]

    service = running.service
    await service.ingest(list(looping(service.clock(), times=3)))
    await http.put("/api/emergency-stop", json={"on": True, "reason": "a test", "by": "ada"})
    first_page = (await http.get("/api/audit", params={"limit": 2})).json()
    second_page = (await http.get("/api/audit", params={"limit": 1000, "cursor": first_page["next"]})).json()
    events = [*first_page["events"], *second_page["events"]]

    assert second_page["next"] is None
    assert [event["seq"] for event in events] == list(range(len(events), 0, -1))
    assert len({event["hash"] for event in events}) == len(events)
    assert not any(event["archived"] for event in events)

    stop_events = (await http.get("/api/audit", params={"type": "emergency_stop_changed"})).json()["events"]
    assert [event["data"]["by"] for event in stop_events] == ["ada"]
    loops = (await http.get("/api/audit", params={"agent_id": "looper", "type": "step_completed"})).json()
    assert len(loops["events"]) == 3
    filters = {"type": ["step_completed", "execution_started"], "agent_id": "looper"}
    assert len((await http.get("/api/audit", params=filters)).json()["events"]) == 4
    started_at = service.started_at
    later_events = (await http.get("/api/audit", params={"agent_id": "looper", "since": started_at})).json()[
        "events"
    ]
    earlier_events = (
        await http.get("/api/audit", params={"agent_id": "looper", "until": started_at})
    ).json()["events"]
    assert {event["time"] >= started_at for event in later_events} <= {True}
    assert {event["time"] < started_at for event in earlier_events} == {True}
    assert (await http.get("/api/audit", params={"type": "no_such"})).status_code == 422
    assert (await http.get("/api/audit", params={"cursor": "x"})).status_code == 400


# -- reload ---------------------------------------------------------------------------------------


async def test_reload_applies_changed_settings_and_names_those_that_need_a_restart(
    running: RunningService, http: httpx.AsyncClient, file: SettingsFile
) -> None:
    service = running.service
    await service.ingest(list(looping(service.clock(), times=2)))
    worker = service.monitor.get("looper")
    assert worker is not None
    assert worker.state is HealthState.HEALTHY

    file.write(warning=2, hold=7, judge=60, runbooks="https://b.example")
    body = (await http.post("/-/reload")).json()

    assert body == {
        "applied": [
            "alerting.runbook_url",
            "health_monitoring.bands.warning",
            "health_monitoring.tickets.hold_seconds",
        ],
        "needs_restart": ["health_monitoring.judge.interval_seconds"],
        "unchanged": False,
    }
    # With the new threshold, the worker is unhealthy immediately, without a new event.
    assert worker.state is not HealthState.HEALTHY
    assert service.settings.alerting.runbooks == "https://b.example"
    assert service.settings.health_monitoring.judge.interval_seconds == 3600
    result = (await http.get("/api/settings")).json()["settings"]["health_monitoring"]
    assert (result["bands"]["warning"], result["tickets"]["hold_seconds"]) == (2, 7)

    # Settings that need a restart are listed each time. Applied settings are listed only once.
    repeated_result = (await http.post("/-/reload")).json()
    assert repeated_result["applied"] == []
    assert repeated_result["needs_restart"] == ["health_monitoring.judge.interval_seconds"]
    file.write(judge=3600)
    assert (await http.post("/-/reload")).json()["unchanged"] is True


@pytest.mark.parametrize(
    ("fault", "expected_text"),
    [
        ("health_monitoring: {bands: {warning: 99}}", "bands must rise"),
        ("no_such_thing: 1", "no such setting"),
        ("[", "is not valid YAML"),
        (None, "cannot be read"),
    ],
)
async def test_reload_of_an_invalid_file_changes_nothing(
    running: RunningService,
    http: httpx.AsyncClient,
    file: SettingsFile,
    fault: str | None,
    expected_text: str,
) -> None:
    settings_before = running.service.settings
    file.path.unlink()
    if fault is not None:
        file.path.write_text(fault, encoding="utf-8")
    response = await http.post("/-/reload")

    assert response.status_code == 422
    assert expected_text in response.json()["title"]
    assert running.service.settings is settings_before


async def test_settings_without_a_file_cannot_be_reloaded(tmp_path: Path) -> None:
    settings = Settings(storage=tmp_path / "s", http=HttpSettings(port=0), otlp=OtlpSettings(port=0))
    async with (
        serving(settings) as running,
        httpx.AsyncClient(base_url=running.url, trust_env=False) as http,
    ):
        response = await http.post("/-/reload")

    assert response.status_code == 409
    assert "restart the service" in response.json()["title"]


async def test_sighup_reloads_settings_but_an_invalid_file_changes_nothing(
    running: RunningService, file: SettingsFile, caplog: pytest.LogCaptureFixture
) -> None:
    service = running.service
    reload_on_sighup(lambda: [service])
    try:
        file.write(warning=2)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(
            lambda: service.settings.health_monitoring.bands.warning == 2, "the new threshold applies"
        )
        file.path.write_text("no_such_thing: 1", encoding="utf-8")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(
            lambda: "settings not reloaded, the old ones stay in force" in caplog.text,
            "the error is logged",
        )
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    assert "no such setting" in caplog.text
    assert service.settings.health_monitoring.bands.warning == 2


# -- the timeline of a ticket ---------------------------------------------------------------------

DRAFT = TicketDraft(
    severity=Severity.LOW,
    cause="It repeats itself",
    judge_reasoning="Five times the same call.",
    suggested_action="Look.",
    evidence_snippet="",
)


async def test_dismissal_by_a_person_is_in_the_timeline(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B48: a dismissal is stored and can be read. The same condition is not triaged again."""
    service = running.service
    await service.judging.stop()  # Only the test decides.
    await service.ingest(list(looping(service.clock(), times=4)))
    worker = service.monitor.get("looper")
    assert worker is not None
    ticket = (await service.tickets.raise_ticket(worker, DRAFT)).ticket
    path = f"/api/tickets/{ticket.ticket_id}"
    response = await http.post(f"{path}/dismiss", json={"reason": "It is a drill.", "by": "ada"})
    later_ticket = await http.post(f"{path}/dismiss", json={"reason": "Really.", "by": "ada"})
    await service.tickets.observe(worker)
    ticket_page = (await http.get(path)).json()
    timeline_texts = (await http.get(f"{path}/timeline")).json()
    unknown_response = await http.get("/api/tickets/none/timeline")

    assert (response.status_code, later_ticket.status_code, unknown_response.status_code) == (200, 409, 404)
    assert (ticket_page["status"], ticket_page["triaged_by"], ticket_page["triage_reason"]) == (
        "dismissed",
        "ada",
        "It is a drill.",
    )
    assert [entry["what"] for entry in timeline_texts["timeline"]] == [
        "worker_escalation_ticket",
        "ticket_triaged",
    ]
    assert (timeline_texts["timeline"][1]["by"], timeline_texts["timeline"][1]["text"]) == (
        "ada",
        "ada: It is a drill.",
    )
    assert timeline_texts["more"] is False
