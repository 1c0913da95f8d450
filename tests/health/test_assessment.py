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
from tests.health.test_state import _event, moves
from tests.health.worker_script import WorkerScript

SETTINGS = HealthSettings()


def worker(**start: Any) -> WorkerScript:
    return WorkerScript().start(**start)


def assessed(script: WorkerScript) -> dict[str, Signal]:
    return assess(script.health.vitals, SETTINGS, script.now)


def test_every_kind_of_finding_belongs_to_a_signal() -> None:
    assert set(SIGNAL_BY_KIND) == set(FindingKind)
    assert set(SIGNAL_BY_KIND.values()) <= set(assessed(worker()))


def test_healthy_worker_has_numbers_and_unreported_signals_are_unknown() -> None:
    """002 §11: the health check shows the evidence of each of its signals."""
    script = worker()
    script.call(after=10)
    script.step("ACCEPT", after=10)
    script.now += 60
    health = assessed(script)

    assert script.state is HealthState.HEALTHY
    assert {s.name: s.verdict.value for s in health.values()} == {
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
    script = worker(heartbeat_interval=300)
    script.event(EventType.AGENT_HEARTBEAT, {"interval": 300, "phase": "llm", "progress_indicator": "3 of 4"})
    script.event(EventType.CHECKPOINT_SAVED)
    script.event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 40, "output_tokens": 2})
    script.event(EventType.OUTPUT_REPORTED, {"tests_passed": 3})
    script.event(EventType.RESOURCE_REPORTED, {"resource": "disk", "used": 1, "limit": 4}, after=0.0)
    script.event(EventType.RECOVERY_COMPLETED)
    health = assessed(script)

    assert health["heartbeat"].evidence == "the last 4 s ago, llm, 3 of 4"
    assert health["tokens"].evidence == "42 tokens, used last 2 s ago"
    assert health["output"].evidence == "3 tests passed, for 1 s"
    assert health["resources"].evidence == "disk 25% used (1 of 4)"
    assert health["recovery"].evidence == "recovered 0 s ago"
    assert SignalStatus.UNKNOWN not in {
        s.verdict for s in health.values() if s.name not in ("steps", "tool_calls")
    }


def test_warning_and_bad_are_distinct() -> None:
    script = worker()
    script.event(EventType.CHECKPOINT_SAVED)
    for _ in range(13):
        script.call("run_tests", after=50)
    health = assessed(script)

    assert (health["tool_calls"].verdict, health["checkpoint"].verdict) == (
        SignalStatus.BAD,
        SignalStatus.WARNING,
    )
    assert "run_tests" in health["tool_calls"].evidence
    assert "13" in health["tool_calls"].evidence
    assert script.state is HealthState.STUCK


def test_consecutive_failures_are_bad_without_a_finding() -> None:
    script = worker()
    script.step(error_type="OSError", times=4)
    health = assessed(script)

    assert script.state is HealthState.FAILING
    assert health["errors"].verdict is SignalStatus.BAD
    assert "4 steps" in health["errors"].evidence


def test_no_secret_of_a_worker_is_in_the_evidence() -> None:
    script = worker()
    secret = "sk-abcdefghijklmnop1234"
    script.event(EventType.EXECUTION_FAILED, {"error": f"refused {secret}"})
    script.event(EventType.RECOVERY_FAILED, {"exhausted": True, "reason": f"key {secret}"})

    assert secret not in str(assessed(script))


def test_names_of_workers_tools_and_errors_are_masked() -> None:
    secret = "sk-abcdefghijklmnop1234"
    script = worker(heartbeat_interval=300)
    findings: set[FindingKind] = set()

    def look() -> None:
        findings.update(finding.kind for finding in script.health.findings)
        assert secret not in str(assessed(script))

    script.event(EventType.AGENT_HEARTBEAT, {"phase": secret, "progress_indicator": f"at {secret}"})
    script.event(EventType.TOOL_CALL_STARTED, {"tool": secret, "call_id": "1", "timeout": 30})
    look()
    script.now += 5000
    script.monitor.advance(script.now)
    look()
    script.call(secret)
    for _ in range(12):
        script.call(secret, outcome="error", error_type=secret)
        script.event(EventType.LLM_CALL_COMPLETED, {"error_type": secret})
        look()
    for _ in range(8):
        script.call(secret)
        look()
    name = f"tool_execution:agent:{secret}"
    script.event(EventType.CIRCUIT_BREAKER_STATE_CHANGED, {"name": name, "to": "open"})
    look()

    kinds_with_evidence = {FindingKind.STALL, FindingKind.PROVIDER_FAILURE, FindingKind.CIRCUIT_BREAKER_OPEN}
    assert findings >= kinds_with_evidence | {
        FindingKind.DOOM_LOOP,
        FindingKind.ERROR_STREAK,
        FindingKind.TOOL_TIMEOUT,
    }


@given(st.lists(moves, max_size=40), st.floats(0, 5000))
def test_signals_account_for_the_state(script: list[Any], later: float) -> None:
    one = WorkerScript()
    for move in script:
        one.now += move[2]
        one.monitor.apply(_event(move, one.now), one.now)
    for health in one.monitor.workers():
        v, now = health.vitals, one.now + later
        signals = assess(v, SETTINGS, now)
        state = determine_state(v, detect(v, SETTINGS, now), SETTINGS, now)
        verdicts = {signal.verdict for signal in signals.values()}

        assert all(signal.name == name for name, signal in signals.items())
        assert all(signal.evidence and len(signal.evidence) <= 300 for signal in signals.values())
        bad = state in (HealthState.STUCK, HealthState.FAILING, HealthState.TERMINATED)
        assert (SignalStatus.BAD in verdicts) == (bad or FindingKind.RECOVERY_FAILED in kinds(v, now))
        if not v.has_ended and state is HealthState.HEALTHY:
            assert verdicts <= {SignalStatus.OK, SignalStatus.UNKNOWN}
        if state is HealthState.DEGRADED:
            assert verdicts & {SignalStatus.WARNING, SignalStatus.BAD}


def kinds(v: Any, now: float) -> set[FindingKind]:
    return {finding.kind for finding in detect(v, SETTINGS, now)}
