from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queenright.health.detection.assessment import SIGNAL_BY_KIND, Signal, SignalStatus, assess
from queenright.health.detection.detectors import detect
from queenright.health.detection.health_state import HealthState, determine_state
from queenright.health.findings import FindingKind
from queenright.health.settings import HealthSettings
from queenright.runtime.events import EventType
from tests.health.test_state import _make_event, moves
from tests.health.worker_script import WorkerScript

SETTINGS = HealthSettings()


def make_worker(**start: Any) -> WorkerScript:
    return WorkerScript().start(**start)


def assess_script(script: WorkerScript) -> dict[str, Signal]:
    return assess(script.health.vitals, SETTINGS, script.now)


def test_every_kind_of_finding_belongs_to_a_signal() -> None:
    assert set(SIGNAL_BY_KIND) == set(FindingKind)
    assert set(SIGNAL_BY_KIND.values()) <= set(assess_script(make_worker()))


def test_healthy_worker_has_numbers_and_unreported_signals_are_unknown() -> None:
    """002 §11: the health check shows the evidence of each of its signals."""
    script = make_worker()
    script.report_call(after=10)
    script.report_step("ACCEPT", after=10)
    script.now += 60
    health = assess_script(script)

    assert script.state is HealthState.HEALTHY
    assert {signal.name: signal.verdict.value for signal in health.values()} == {
        "activity": "ok",
        "steps": "ok",
        "heartbeat": "unknown",
        "checkpoint": "unknown",
        "tool_calls": "ok",
        "tokens": "unknown",
        "errors": "ok",
        "output": "unknown",
        "breakers": "ok",
        "resources": "unknown",
        "recovery": "ok",
    }
    assert health["tool_calls"].evidence == "1 call, the last 70 s ago"
    assert "0%" in health["errors"].evidence
    assert "0 errors" in health["errors"].evidence


def test_every_reported_signal_is_shown() -> None:
    script = make_worker(heartbeat_interval=300)
    script.report_event(
        EventType.AGENT_HEARTBEAT, {"interval": 300, "phase": "llm", "progress_indicator": "3 of 4"}
    )
    script.report_event(EventType.CHECKPOINT_SAVED)
    script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 40, "output_tokens": 2})
    script.report_event(EventType.OUTPUT_REPORTED, {"tests_passed": 3})
    script.report_event(EventType.RESOURCE_REPORTED, {"resource": "disk", "used": 1, "limit": 4}, after=0.0)
    script.report_event(EventType.RECOVERY_COMPLETED)
    health = assess_script(script)

    assert health["heartbeat"].evidence == "the last 4 s ago, llm, 3 of 4"
    assert health["tokens"].evidence == "42 tokens, used last 2 s ago"
    assert health["output"].evidence == "3 tests passed, for 1 s"
    assert health["resources"].evidence == "disk 25% used (1 of 4)"
    assert health["recovery"].evidence == "recovered 0 s ago"
    assert SignalStatus.UNKNOWN not in {
        signal.verdict for signal in health.values() if signal.name not in ("steps", "tool_calls")
    }


def test_warning_and_bad_are_distinct() -> None:
    script = make_worker()
    script.report_event(EventType.CHECKPOINT_SAVED)
    for _ in range(13):
        script.report_call("run_tests", after=50)
    health = assess_script(script)

    assert (health["tool_calls"].verdict, health["checkpoint"].verdict) == (
        SignalStatus.BAD,
        SignalStatus.WARNING,
    )
    assert "run_tests" in health["tool_calls"].evidence
    assert "13" in health["tool_calls"].evidence
    assert script.state is HealthState.STUCK


def test_consecutive_failures_are_bad_without_a_finding() -> None:
    script = make_worker()
    script.report_step(error_type="OSError", times=4)
    health = assess_script(script)

    assert script.state is HealthState.FAILING
    assert health["errors"].verdict is SignalStatus.BAD
    assert "4 steps" in health["errors"].evidence


def test_no_secret_of_a_worker_is_in_the_evidence() -> None:
    script = make_worker()
    secret = "sk-abcdefghijklmnop1234"
    script.report_event(EventType.EXECUTION_FAILED, {"error": f"refused {secret}"})
    script.report_event(EventType.RECOVERY_FAILED, {"exhausted": True, "reason": f"key {secret}"})

    assert secret not in str(assess_script(script))


def test_names_of_workers_tools_and_errors_are_masked() -> None:
    secret = "sk-abcdefghijklmnop1234"
    script = make_worker(heartbeat_interval=300)
    findings: set[FindingKind] = set()

    def assess_worker() -> None:
        findings.update(finding.kind for finding in script.health.findings)
        assert secret not in str(assess_script(script))

    script.report_event(EventType.AGENT_HEARTBEAT, {"phase": secret, "progress_indicator": f"at {secret}"})
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": secret, "call_id": "1", "timeout": 30})
    assess_worker()
    script.now += 5000
    script.monitor.advance(script.now)
    assess_worker()
    script.report_call(secret)
    for _ in range(12):
        script.report_call(secret, outcome="error", error_type=secret)
        script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": secret})
        assess_worker()
    for _ in range(8):
        script.report_call(secret)
        assess_worker()
    name = f"tool_execution:agent:{secret}"
    script.report_event(EventType.CIRCUIT_BREAKER_STATE_CHANGED, {"name": name, "to": "open"})
    assess_worker()

    kinds_with_evidence = {FindingKind.STALL, FindingKind.PROVIDER_FAILURE, FindingKind.CIRCUIT_BREAKER_OPEN}
    assert findings >= kinds_with_evidence | {
        FindingKind.DOOM_LOOP,
        FindingKind.ERROR_STREAK,
        FindingKind.TOOL_TIMEOUT,
    }


@given(st.lists(moves, max_size=40), st.floats(0, 5000))
def test_signals_account_for_the_state(steps: list[Any], later: float) -> None:
    worker_script = WorkerScript()
    for step in steps:
        worker_script.now += step[2]
        worker_script.monitor.apply(_make_event(step, worker_script.now), worker_script.now)
    for health in worker_script.monitor.workers():
        vitals, now = health.vitals, worker_script.now + later
        signals = assess(vitals, SETTINGS, now)
        state = determine_state(vitals, detect(vitals, SETTINGS, now), SETTINGS, now)
        verdicts = {signal.verdict for signal in signals.values()}

        assert all(signal.name == name for name, signal in signals.items())
        assert all(signal.evidence and len(signal.evidence) <= 300 for signal in signals.values())
        is_bad = state in (HealthState.STUCK, HealthState.FAILING, HealthState.TERMINATED)
        assert (SignalStatus.BAD in verdicts) == (
            is_bad or FindingKind.RECOVERY_FAILED in list_kinds(vitals, now)
        )
        if not vitals.has_ended and state is HealthState.HEALTHY:
            assert verdicts <= {SignalStatus.OK, SignalStatus.UNKNOWN}
        if state is HealthState.DEGRADED:
            assert verdicts & {SignalStatus.WARNING, SignalStatus.BAD}


def list_kinds(vitals: Any, now: float) -> set[FindingKind]:
    return {finding.kind for finding in detect(vitals, SETTINGS, now)}
