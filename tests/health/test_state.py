from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.detection.detectors import detect
from queenright.health.detection.health_state import (
    TRANSITIONS,
    HealthState,
    determine_state,
    is_allowed_transition,
    is_progressing_despite_breaker,
    is_stuck,
)
from queenright.health.findings import Finding, FindingKind, Severity, find_worst
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_facts import OpenBreakers
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.runtime.events import AgentEvent, EventType
from tests.health.worker_script import START, WorkerScript

SETTINGS = HealthSettings()

verdicts = st.sampled_from(["ACCEPT", "RETRY", "CONTINUE", "ESCALATE", None, "NONSENSE", 7])
any_value = st.none() | st.integers(-5, 10**13) | st.floats() | st.text(max_size=5) | st.booleans()
datas = st.fixed_dictionaries(
    {},
    optional={
        "verdict": verdicts,
        "error_type": st.sampled_from(["E", "CancelledError", None]),
        "tool": st.sampled_from(["a", "b"]),
        "call_id": st.sampled_from(["1", "2", None]),
        "args_hash": st.sampled_from(["x", "y", None]),
        "result_hash": st.sampled_from(["x", "y", "z", None]),
        "outcome": st.sampled_from(["ok", "error", "timeout"]),
        "turn": st.sampled_from([1, 2, None]),
        "reason": st.sampled_from(["user_input", "paused", "backoff", "done", None, "nonsense"]),
        "timeout": any_value,
        "interval": any_value,
        "input_tokens": any_value,
        "start_records": st.booleans(),
        "name": st.sampled_from(["tool_execution:a:x", "external_api:a", None]),
        "to": st.sampled_from(["open", "half_open", "closed", 3]),
        "exhausted": st.booleans(),
        "status": st.sampled_from(["resolved", "worker_gone"]),
        "by": st.sampled_from(["ann", None]),
        "tests_passed": any_value,
        "token_count": any_value,
        "task_id": any_value,
        "phase": any_value,
    },
)
moves = st.tuples(
    st.sampled_from(list(EventType)),
    datas,
    st.floats(0, 2000),
    st.floats(-100, 100),
    st.sampled_from(["i1", "i2", ""]),
    st.sampled_from(["n1", "n2", ""]),
)


def _make_event(move: tuple[EventType, dict[str, Any], float, float, str, str], now: float) -> AgentEvent:
    type_, data, _, skew, incarnation, node = move
    return AgentEvent(
        type=type_,
        time=now + skew,
        agent_id="a",
        session_id="s",
        incarnation_id=incarnation,
        node_id=node,
        data=data,
    )


@given(st.lists(moves, max_size=40), st.lists(st.floats(0, 5000), max_size=5))
def test_any_events_give_one_state_that_time_never_improves(steps: list[Any], later: list[float]) -> None:
    monitor = HealthMonitor(SETTINGS)
    now = START
    for step in steps:
        now += step[2]
        monitor.apply(_make_event(step, now), now)
        monitor.advance(now)

    for health in monitor.workers():
        ranks = []
        for at in sorted([now, *(now + seconds for seconds in later)]):
            detected = detect(health.vitals, SETTINGS, at)
            assert len({finding.kind for finding in detected}) == len(detected)
            ranks.append(determine_state(health.vitals, detected, SETTINGS, at).rank)
        assert ranks == sorted(ranks)


@given(st.lists(moves, max_size=40))
def test_every_state_change_is_valid_and_published(steps: list[Any]) -> None:
    """002 §11: only a new incarnation ends the terminated state."""
    monitor = HealthMonitor(SETTINGS)
    now, incarnations = START, 1
    for step in steps:
        now += step[2]
        events = monitor.apply(_make_event(step, now), now)
        events += monitor.advance(now)
        health = monitor.get("a", "s")
        incarnations_now = health.vitals.incarnation_count if health is not None else 1
        for change in (event.data for event in events if event.type is EventType.HEALTH_STATE_CHANGED):
            old_state, new_state = HealthState(change["from"]), HealthState(change["to"])
            assert is_allowed_transition(old_state, new_state, has_restarted=incarnations_now != incarnations)
        incarnations = incarnations_now
        if health is not None:
            assert health.state is determine_state(health.vitals, health.findings, SETTINGS, now)


vital_signs = st.fixed_dictionaries(
    {
        "status": st.sampled_from(WorkerStatus),
        "over": st.booleans(),
        "consecutive_failures": st.integers(0, 6),
        "llm_errors": st.integers(0, 6),
        "breakers": st.builds(OpenBreakers, *[st.sampled_from([(), ("tool_execution:a",)])] * 2),
        "recovery_failed": st.sampled_from(["", "gave up"]),
        "error_rate_high": st.booleans(),
        "heartbeat_late": st.booleans(),
    }
)
findings = st.lists(
    st.builds(
        lambda kind, severity, ticket: _make_finding(kind, severity, ticket=ticket),
        st.sampled_from(FindingKind),
        st.sampled_from(Severity),
        st.booleans(),
    ),
    max_size=5,
    unique_by=lambda f: f.kind,
)


@given(vital_signs, findings)
def test_every_combination_of_inputs_is_exactly_one_state(
    signs: dict[str, Any], found_findings: list[Finding]
) -> None:
    """002 §11: the order is terminated, failing, stuck, degraded, healthy, in any combination."""
    vitals = VitalSigns("a", "s", START, SETTINGS)
    vitals.ended_at = START if signs.pop("over") else None
    for name, value in signs.items():
        setattr(vitals, name, value)
    vitals._failed_incarnation = 1
    allowed_failures = SETTINGS.health_check.consecutive_failures
    has_ended = vitals.ended_at is not None
    condition_holds = {
        HealthState.TERMINATED: vitals.status is WorkerStatus.TERMINATED,
        HealthState.FAILING: (has_ended and vitals.failed_runs > allowed_failures)
        or bool(vitals.recovery_failed)
        or (not has_ended and (max(vitals.consecutive_failures, vitals.llm_errors) > allowed_failures))
        or (not has_ended and bool(vitals.open_breakers)),
        HealthState.STUCK: not has_ended and any(is_stuck(f) for f in found_findings),
        HealthState.DEGRADED: not has_ended and bool(found_findings),
    }

    worst_of_all = next(
        (state for state, finding_case in condition_holds.items() if finding_case), HealthState.HEALTHY
    )
    assert determine_state(vitals, found_findings, SETTINGS, START) is worst_of_all


def test_terminated_state_is_final_within_an_incarnation() -> None:
    """002 §11: transitions are validated."""
    assert TRANSITIONS[HealthState.TERMINATED] == frozenset()
    for state in HealthState:
        if state is HealthState.TERMINATED:
            continue
        assert TRANSITIONS[state] == frozenset(HealthState) - {state}
        assert is_allowed_transition(HealthState.TERMINATED, state, has_restarted=True)
        assert not is_allowed_transition(HealthState.TERMINATED, state, has_restarted=False)


def test_late_events_of_a_terminated_worker_change_nothing_and_a_new_run_does() -> None:
    script = WorkerScript().start()
    script.report_event(EventType.AGENT_TERMINATED)
    for event_type in (EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED, EventType.STEP_COMPLETED):
        script.report_event(
            event_type, {"error_type": "OSError"} if event_type is EventType.EXECUTION_FAILED else {}
        )
    state_after_end = script.state
    script.start()
    script.report_event(EventType.EXECUTION_STARTED)

    assert (state_after_end, script.state) == (HealthState.TERMINATED, HealthState.HEALTHY)


@given(st.lists(moves, max_size=40), st.data())
def test_replay_gives_the_same_verdict_on_every_evaluation(steps: list[Any], data: st.DataObject) -> None:
    live, replay = HealthMonitor(SETTINGS), HealthMonitor(SETTINGS)
    now = START
    for step in steps:
        now += step[2]
        for _ in range(data.draw(st.integers(0, 2))):
            live.advance(now - data.draw(st.floats(0, step[2])))
        live.apply(_make_event(step, now), now)
        replay.apply(_make_event(step, now), now)
    live.advance(now)
    replay.advance(now)
    replay.sweep(now)
    live.sweep(now)

    assert [(worker.state, worker.findings) for worker in live.workers()] == [
        (worker.state, worker.findings) for worker in replay.workers()
    ]


def _make_finding(kind: FindingKind, severity: Severity, *, ticket: bool = True) -> Finding:
    return Finding(kind=kind, severity=severity, evidence="", since=START, ticket=ticket)


@given(st.lists(st.tuples(st.sampled_from(FindingKind), st.sampled_from(Severity)), max_size=6))
def test_findings_alone_never_make_a_worker_terminated_or_healthy(found_findings: list[Any]) -> None:
    vitals = VitalSigns("a", "s", START, SETTINGS)
    state = determine_state(vitals, [_make_finding(*pair) for pair in found_findings], SETTINGS, START)

    assert (state is HealthState.HEALTHY) is (not found_findings)
    assert state in (HealthState.HEALTHY, HealthState.DEGRADED, HealthState.STUCK)


@pytest.mark.parametrize(("failures", "state"), [(3, HealthState.HEALTHY), (4, HealthState.FAILING)])
def test_more_than_three_failures_in_a_row_are_failing(failures: int, state: HealthState) -> None:
    script = WorkerScript().start()
    script.report_step(error_type="OSError", times=failures)
    assert script.state is state

    script.report_step("CONTINUE")
    assert script.state is HealthState.HEALTHY


def test_failing_beats_stuck_and_terminated_beats_all() -> None:
    script = WorkerScript().start()
    for _ in range(5):
        script.report_call()
        script.report_step(error_type="OSError")
    assert script.get_finding(FindingKind.DOOM_LOOP) is not None
    before = script.state
    script.report_event(EventType.AGENT_TERMINATED)

    assert [before, script.state] == [HealthState.FAILING, HealthState.TERMINATED]


def test_worst_finding_is_chosen_by_ticket_then_severity_then_cause() -> None:
    loop = _make_finding(FindingKind.DOOM_LOOP, Severity.CRITICAL, ticket=False)
    stall = _make_finding(FindingKind.STALL, Severity.HIGH)
    provider = _make_finding(FindingKind.PROVIDER_FAILURE, Severity.HIGH)

    assert find_worst([loop, stall, provider]) is provider
    assert find_worst([]) is None


def test_progress_despite_an_open_breaker_is_not_failing() -> None:
    script = WorkerScript().start()
    script.report_step("ACCEPT")
    name = {"name": "tool_execution:agent:search"}
    script.report_event(EventType.CIRCUIT_BREAKER_STATE_CHANGED, name | {"to": "open"})
    at_first = is_progressing_despite_breaker(script.health.vitals, script.health.findings)
    script.report_step("ACCEPT")
    is_progressing = is_progressing_despite_breaker(script.health.vitals, script.health.findings)
    script.now += 600
    script.monitor.advance(script.now)
    is_progressing_after_silence = is_progressing_despite_breaker(
        script.health.vitals, script.health.findings
    )
    script.report_step("ACCEPT")
    script.report_event(EventType.CIRCUIT_BREAKER_STATE_CHANGED, name | {"to": "half_open"})

    assert (at_first, is_progressing, is_progressing_after_silence) == (False, True, False)
    assert not is_progressing_despite_breaker(script.health.vitals, script.health.findings)
