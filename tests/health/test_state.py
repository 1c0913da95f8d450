from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queenright.health.detectors import detect
from queenright.health.findings import Finding, FindingKind, HealthState, Severity, worst
from queenright.health.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.state import health_state
from queenright.health.vitals import VitalSigns
from queenright.runtime.events import AgentEvent, EventType
from tests.health.worker_script import START, WorkerScript

SETTINGS = HealthSettings()

verdicts = st.sampled_from(["ACCEPT", "RETRY", "CONTINUE", "ESCALATE", None, "NONSENSE", 7])
anything = st.none() | st.integers(-5, 10**13) | st.floats() | st.text(max_size=5) | st.booleans()
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
        "timeout": anything,
        "interval": anything,
        "input_tokens": anything,
        "start_records": st.booleans(),
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


def _event(move: tuple[EventType, dict[str, Any], float, float, str, str], now: float) -> AgentEvent:
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


@settings(deadline=None, max_examples=60)
@given(st.lists(moves, max_size=40), st.lists(st.floats(0, 5000), max_size=5))
def test_any_events_give_exactly_one_state_and_time_makes_nobody_healthier(
    script: list[Any], later: list[float]
) -> None:
    monitor = HealthMonitor(SETTINGS)
    now = START
    for move in script:
        now += move[2]
        monitor.apply(_event(move, now), now)
        monitor.advance(now)

    for health in monitor.workers():
        ranks = []
        for at in sorted([now, *(now + more for more in later)]):
            found = detect(health.vitals, SETTINGS, at)
            assert len({finding.kind for finding in found}) == len(found)
            ranks.append(health_state(health.vitals, found, SETTINGS, at).rank)
        assert ranks == sorted(ranks)


@settings(deadline=None, max_examples=60)
@given(st.lists(moves, max_size=40), st.data())
def test_a_replay_gives_the_same_verdict_however_often_it_is_looked_at(
    script: list[Any], data: st.DataObject
) -> None:
    live, replay = HealthMonitor(SETTINGS), HealthMonitor(SETTINGS)
    now = START
    for move in script:
        now += move[2]
        for _ in range(data.draw(st.integers(0, 2))):
            live.advance(now - data.draw(st.floats(0, move[2])))
        live.apply(_event(move, now), now)
        replay.apply(_event(move, now), now)
    live.advance(now)
    replay.advance(now)
    replay.sweep(now)
    live.sweep(now)

    assert [(w.state, w.findings) for w in live.workers()] == [
        (w.state, w.findings) for w in replay.workers()
    ]


def _finding(kind: FindingKind, severity: Severity, *, ticket: bool = True) -> Finding:
    return Finding(kind=kind, severity=severity, evidence="", since=START, ticket=ticket)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(FindingKind), st.sampled_from(Severity)), max_size=6))
def test_findings_alone_never_make_a_worker_terminated_or_healthy(found: list[Any]) -> None:
    vitals = VitalSigns("a", "s", START, SETTINGS.loops)
    state = health_state(vitals, [_finding(*pair) for pair in found], SETTINGS, START)

    assert (state is HealthState.HEALTHY) is (not found)
    assert state in (HealthState.HEALTHY, HealthState.DEGRADED, HealthState.STUCK)


@pytest.mark.parametrize(("failures", "state"), [(3, HealthState.HEALTHY), (4, HealthState.FAILING)])
def test_more_than_three_failures_in_a_row_are_failing(failures: int, state: HealthState) -> None:
    script = WorkerScript().start()
    script.step(error_type="OSError", times=failures)
    assert script.state is state

    script.step("CONTINUE")
    assert script.state is HealthState.HEALTHY


def test_failing_beats_stuck_and_terminated_beats_all() -> None:
    script = WorkerScript().start()
    for _ in range(5):
        script.call()
        script.step(error_type="OSError")
    assert script.finding(FindingKind.DOOM_LOOP) is not None
    before = script.state
    script.event(EventType.AGENT_TERMINATED)

    assert [before, script.state] == [HealthState.FAILING, HealthState.TERMINATED]


def test_the_worst_finding_is_ticket_worthy_then_severe_then_nearest_to_the_cause() -> None:
    shown = _finding(FindingKind.DOOM_LOOP, Severity.CRITICAL, ticket=False)
    stall = _finding(FindingKind.STALL, Severity.HIGH)
    provider = _finding(FindingKind.PROVIDER_FAILURE, Severity.HIGH)

    assert worst([shown, stall, provider]) is provider
    assert worst([]) is None
