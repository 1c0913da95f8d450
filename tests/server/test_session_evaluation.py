"""A session that is replayed with other thresholds, or exported for ``queenright evaluate``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.health.detection.evaluation_thresholds import (
    InvalidThresholdError,
    list_thresholds,
    replace_thresholds,
)
from queenright.health.settings import HealthSettings
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.routes import steps as routes
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings, looping
from tests.warm import queenright

QUESTION = "Which key? sk-live-1234567890abcdef"
REPEATS_SETTING = "health_monitoring.loops.repeats"
LOOP_KIND = {f"health_monitoring.loops.{name}": 50 for name in ("consecutive", "repeats")}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which only the test decides."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


async def evaluate_session(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await http.post("/api/agents/looper/evaluation", json=body)
    assert response.status_code == 200, response.text
    replay: dict[str, Any] = response.json()
    return replay


async def list_live_findings(running: RunningService) -> set[tuple[str, str, str]]:
    """Return the findings of the live monitor at or after the start grace: kind, severity and evidence."""
    history = await running.service.store.history(types={EventType.FINDING_OPENED}, limit=100)
    return _select_columns(event.data for event in history)


def _select_columns(findings: Iterable[Any]) -> set[tuple[str, str, str]]:
    return {(finding["kind"], finding["severity"], finding["evidence"]) for finding in findings}


async def test_replay_has_the_same_findings_as_the_live_monitor(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock())))

    replay = await evaluate_session(http)

    live_findings = await list_live_findings(running)
    assert live_findings
    assert _select_columns(finding for finding in replay["fired"] if not finding["shadow"]) == live_findings
    assert replay["truncated"] is False
    ids = {item["step_id"] for item in (await http.get("/api/agents/looper/steps")).json()["items"]}
    assert {moment["step_id"] for moment in replay["moments"]} <= ids
    assert {finding["step_id"] for finding in replay["fired"]} <= ids


async def test_replayed_moments_have_the_value_of_each_detector(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=2)))

    moments = (await evaluate_session(http))["moments"]

    [loop] = [value for value in moments[-1]["holds"] if value["detector"] == "doom_loop"]
    assert (loop["value"], loop["limit"]) == (2, 3)
    assert loop["text"] == "identical calls in a row: search"
    assert moments[-1]["health"] == "healthy"


async def test_detector_with_a_higher_threshold_fires_later_or_never(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock())))

    def list_loops(replay: dict[str, Any]) -> list[float]:
        return [
            setting_value["at"] for setting_value in replay["fired"] if setting_value["kind"] == "doom_loop"
        ]

    current_replay = await evaluate_session(http)
    later_replay = await evaluate_session(http, settings=dict.fromkeys(LOOP_KIND, 10))
    silent_replay = await evaluate_session(http, settings=LOOP_KIND)

    assert list_loops(current_replay)[0] < list_loops(later_replay)[0]
    assert list_loops(silent_replay) == []
    assert {setting["name"]: setting["value"] for setting in later_replay["settings"]}[REPEATS_SETTING] == 10
    assert running.service.monitor.settings.loops.repeats == 4


@pytest.mark.parametrize(
    ("name", "value", "title"),
    [
        ("health_monitoring.loops.repeets", 5, "did you mean health_monitoring.loops.repeats?"),
        (REPEATS_SETTING, 0, "it must be a number of at least 1 and at most 1,000,000, got 0"),
        (REPEATS_SETTING, 2.5, "it must be a whole number"),
        ("health_monitoring.bands.warning", 99, "bands must rise"),
    ],
)
async def test_invalid_threshold_is_a_422_that_names_its_field_and_range(
    name: str, value: float, title: str, running: RunningService, http: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=1)))

    response = await http.post("/api/agents/looper/evaluation", json={"settings": {name: value}})

    problem = response.json()
    assert response.status_code == 422
    assert title in problem["title"]
    assert problem["field"] == name


async def test_long_session_is_truncated(
    running: RunningService, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_REPLAYED", 10)
    await running.service.ingest(list(looping(running.service.clock())))

    replay = await evaluate_session(http)

    assert replay["truncated"] is True
    assert 0 < len(replay["moments"]) <= 20


async def test_unknown_worker_is_a_404(http: httpx.AsyncClient) -> None:
    assert (await http.post("/api/agents/nobody/evaluation", json={})).status_code == 404
    assert (await http.get("/api/agents/nobody/recording")).status_code == 404


def make_troubled_run(end_time: float) -> list[AgentEvent]:
    """Return a run with a question, calls that are reported when they start, and a failure at the end."""

    def make_event(kind: EventType, event_time: float, **data: object) -> AgentEvent:
        return AgentEvent(
            type=kind, time=event_time, agent_id="looper", session_id="s2", incarnation_id="one", data=data
        )

    start_time = end_time - 55
    call = {"tool": "fetch", "args_hash": "a" * 16, "result_hash": "b" * 16}
    events = [make_event(EventType.EXECUTION_STARTED, start_time, framework="test", start_records=True)]
    for number in range(6):
        seconds = start_time + 1 + 2 * number
        events += [
            make_event(EventType.TOOL_CALL_STARTED, seconds, tool="fetch", call_id=f"c{number}"),
            make_event(
                EventType.TOOL_CALL_COMPLETED, seconds + 1, **call, call_id=f"c{number}", outcome="ok"
            ),
        ]
    events += [
        make_event(
            EventType.WORKER_WAITING,
            start_time + 20,
            reason="user_input",
            question="Key? sk-live-1234567890abcdef",
        ),
        make_event(EventType.CLIENT_INPUT_RECEIVED, start_time + 40),
        make_event(
            EventType.LLM_CALL_COMPLETED, start_time + 41, model="m", error_type="APIError", error="boom"
        ),
        make_event(EventType.EXECUTION_FAILED, start_time + 42, error_type="APIError", error="boom"),
    ]
    return events


@pytest.mark.parametrize("run", ["looping", "hard times"])
async def test_exported_recording_evaluates_to_the_same_findings_as_live(
    run: str,
    running: RunningService,
    http: httpx.AsyncClient,
    tmp_path: Path,
) -> None:
    end_time = running.service.clock()
    await running.service.ingest(list(looping(end_time)) if run == "looping" else make_troubled_run(end_time))

    response = await http.get("/api/agents/looper/recording")
    file = tmp_path / "run.jsonl"
    file.write_text(response.text, encoding="utf-8")
    evaluate_result = await asyncio.to_thread(queenright, "evaluate", str(file), "--json", cwd=tmp_path)

    assert evaluate_result.returncode == 0, evaluate_result.stderr
    assert response.headers["content-type"] == "application/x-ndjson"
    assert "sk-live" not in response.text
    findings = [
        finding for finding in json.loads(evaluate_result.stdout)["findings"] if not finding.get("shadow")
    ]
    live_findings = await list_live_findings(running)
    assert live_findings
    assert _select_columns(findings) == {row for row in live_findings if row[0] != "error_rate"}


def test_each_threshold_can_be_set_to_its_current_value() -> None:
    settings = HealthSettings()
    thresholds = list_thresholds(settings)

    assert (
        replace_thresholds(settings, {threshold.name: threshold.value for threshold in thresholds})
        == settings
    )
    assert all(threshold.help and threshold.value == threshold.default for threshold in thresholds)


@pytest.mark.parametrize("threshold", list_thresholds(HealthSettings()), ids=lambda threshold: threshold.name)
def test_values_outside_the_range_of_a_threshold_are_rejected(threshold: Any) -> None:
    for value in (
        None if threshold.minimum is None else threshold.minimum - 1,
        None if threshold.maximum is None else threshold.maximum + 1,
    ):
        if value is not None:
            with pytest.raises(InvalidThresholdError):
                replace_thresholds(HealthSettings(), {threshold.name: value})
