from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from queenright.health.detection.assessment import assess
from queenright.health.detection.detectors import DETECTORS
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Finding, FindingKind, Severity, WorkerKey
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.settings import HealthSettings
from queenright.health.tickets.ticket_rules import objections, reasons
from queenright.judge.evaluation import evaluate_run
from queenright.runtime.events import EventType
from tests.health.test_state import _make_event, moves
from tests.health.worker_script import WorkerScript

FINDING_EVENTS = {EventType.FINDING_OPENED, EventType.FINDING_CLEARED}
ALL_IN_SHADOW = HealthSettings.model_validate({"detectors": {kind.value: "shadow" for kind in FindingKind}})
ALL_OFF = HealthSettings.model_validate({"detectors": {kind.value: "off" for kind in FindingKind}})
LOOP_IN_SHADOW = HealthSettings.model_validate(
    {"detectors": {"doom_loop": "shadow", "zero_progress": "shadow"}}
)


def test_every_kind_of_finding_has_its_detector() -> None:
    assert set(DETECTORS) == set(FindingKind)


@given(st.lists(moves, max_size=40))
def test_shadow_findings_change_no_state_and_open_no_ticket(
    steps: list[Any],
) -> None:
    shadow_worker, enabled_worker = WorkerScript(settings=ALL_IN_SHADOW), WorkerScript()
    for step in steps:
        for worker_script in (shadow_worker, enabled_worker):
            worker_script.now += step[2]
            worker_script.monitor_events += worker_script.monitor.apply(
                _make_event(step, worker_script.now), worker_script.now
            )
            worker_script.monitor_events += worker_script.monitor.advance(worker_script.now)
    for worker in shadow_worker.monitor.workers():
        vitals = worker.vitals

        assert worker.findings == ()
        assert reasons(worker) == []
        assert objections(worker, reasons(worker))
        assert vitals.consecutive_failures > 3 or vitals.has_ended or worker.state is HealthState.HEALTHY
        enabled_health = enabled_worker.monitor.get(*worker.key)
        assert enabled_health is not None
        assert {f.kind: f.severity for f in worker.shadow} == {
            f.kind: f.severity for f in enabled_health.findings
        }
        assert all(finding.shadow and not finding.ticket for finding in worker.shadow)

    changes = [
        event.data for event in shadow_worker.monitor_events if event.type is EventType.HEALTH_STATE_CHANGED
    ]
    assert not [event for event in shadow_worker.monitor_events if event.type in FINDING_EVENTS]
    assert all(change["findings"] == [] for change in changes)
    assert {change["to"] for change in changes} <= {"healthy", "failing", "terminated"}


@given(st.lists(moves, max_size=30), st.sets(st.sampled_from(list(FindingKind))))
def test_other_detectors_are_unchanged(steps: list[Any], in_shadow: set[FindingKind]) -> None:
    settings = HealthSettings.model_validate({"detectors": {kind.value: "shadow" for kind in in_shadow}})
    shadow_worker, enabled_worker = WorkerScript(settings=settings), WorkerScript()
    for step in steps:
        for worker_script in (shadow_worker, enabled_worker):
            worker_script.now += step[2]
            worker_script.monitor.apply(_make_event(step, worker_script.now), worker_script.now)
            worker_script.monitor.advance(worker_script.now)
    for worker in enabled_worker.monitor.workers():
        other = shadow_worker.monitor.get(*worker.key)

        assert other is not None
        assert other.findings == tuple(
            finding for finding in worker.findings if finding.kind not in in_shadow
        )


def test_disabled_detector_finds_nothing() -> None:
    script = WorkerScript(settings=ALL_OFF).start()
    script.report_step("RETRY", times=30, text="same")
    for _ in range(30):
        script.report_call()
    script.stay_silent(7200)

    assert (script.health.findings, script.health.shadow, script.state) == ((), (), HealthState.HEALTHY)


def test_loop_in_shadow_is_shown_and_the_worker_stays_healthy() -> None:
    script = WorkerScript(settings=LOOP_IN_SHADOW).start()
    script.now += 121
    for _ in range(12):
        script.report_call()
    summary = summarise(script.health, script.now)
    [loop] = [row for row in summary["shadow_findings"] if row["kind"] == "doom_loop"]

    assert script.state is HealthState.HEALTHY
    assert (summary["findings"], summary["state"]) == ([], "healthy")
    assert (loop["severity"], loop["shadow"], loop["ticket"]) == ("high", True, False)
    assert json.loads(json.dumps(summary)) == summary
    assert assess(script.health.vitals, LOOP_IN_SHADOW, script.now)["tool_calls"].verdict == "ok"


def test_shadow_finding_is_reported_once_and_again_when_worse() -> None:
    severities: list[tuple[WorkerKey, FindingKind, Severity]] = []

    def record_finding(worker: WorkerKey, finding: Finding) -> None:
        severities.append((worker, finding.kind, finding.severity))

    monitor = HealthMonitor(LOOP_IN_SHADOW, on_shadow=record_finding)
    script = WorkerScript(monitor=monitor).start()
    for _ in range(25):
        script.report_call()
    loops = [severity for worker, kind, severity in severities if kind is FindingKind.DOOM_LOOP]

    assert loops == [Severity.MEDIUM, Severity.HIGH, Severity.CRITICAL]
    assert {worker for worker, _, _ in severities} == {("agent", "session")}


def test_finding_in_shadow_ends_when_its_condition_does() -> None:
    script = WorkerScript(settings=LOOP_IN_SHADOW).start()
    for _ in range(5):
        script.report_call()
    before = script.health.shadow
    for index in range(6):
        script.report_call(args=f"other {index}", result=f"new {index}")

    assert before
    assert script.health.shadow == ()


def test_stall_in_shadow_is_found_at_its_deadline() -> None:
    script = WorkerScript(settings=HealthSettings.model_validate({"detectors": {"stall": "shadow"}})).start()
    script.report_step("CONTINUE")

    assert script.stay_silent(240) == []
    assert [finding.kind for finding in script.health.shadow] == [FindingKind.STALL]


def test_shadow_breaker_and_provider_findings_do_not_fail_a_worker() -> None:
    script = WorkerScript(settings=ALL_IN_SHADOW).start()
    script.report_event(EventType.CIRCUIT_BREAKER_STATE_CHANGED, {"name": "llm:agent", "to": "open"})
    for _ in range(6):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError"})

    assert script.state is HealthState.HEALTHY


@pytest.mark.parametrize(("expected", "mode"), [(True, "on"), (False, "off"), ("shadow", "shadow")])
def test_on_and_off_may_be_unquoted_in_yaml(expected: object, mode: str) -> None:
    """YAML reads ``on`` and ``off`` as true and false."""
    settings = HealthSettings.model_validate({"detectors": {"doom_loop": expected}})

    assert settings.detectors == {FindingKind.DOOM_LOOP: mode}


def test_unknown_kind_error_lists_the_kinds() -> None:
    with pytest.raises(ValidationError, match=r"doom_loops.*\n.*'doom_loop'.*'token_spike'"):
        HealthSettings.model_validate({"detectors": {"doom_loops": "on"}})


def test_unknown_mode_error_lists_the_modes() -> None:
    with pytest.raises(ValidationError, match="'on', 'shadow' or 'off'"):
        HealthSettings.model_validate({"detectors": {"doom_loop": "silent"}})


def test_recorded_run_shows_shadow_findings() -> None:
    steps = [
        {"kind": "tool", "name": "s", "turn": n, "args_hash": "a", "result_hash": "r", "t": n}
        for n in range(12)
    ]
    run = {"run_id": "1", "steps": steps}
    findings = evaluate_run(run, LOOP_IN_SHADOW)["findings"]
    acting_findings = evaluate_run(run, HealthSettings())["findings"]

    assert {row["kind"] for row in findings if row.get("shadow")} == {"doom_loop", "zero_progress"}
    assert [{k: vitals for k, vitals in row.items() if k != "shadow"} for row in findings] == acting_findings
