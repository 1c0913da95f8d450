"""The guard inside a node: the monitor's own detectors, applied to the events of one visit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.detection.detectors import detect
from queenright.health.detection.stall_clock import compute_ladder_seconds
from queenright.health.findings import Severity
from queenright.health.settings import HealthSettings, LoopSettings
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.nodes.node_guard import Guard, GuardFinding
from queenright.runtime.nodes.reporting import Origin
from queenright.server.agents.node_guards import GUARDED, make_health_guard

NOON = 1_800_000_000.0
ORIGIN = Origin(agent_id="scribe", session_id="one", graph_id="writing")


def make_guard(settings: HealthSettings | None = None) -> Guard:
    return make_health_guard(settings or HealthSettings())(ORIGIN, "write")


def make_event(kind: EventType, at: float, incarnation: str = "life-1", **data: object) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=NOON + at,
        agent_id="scribe",
        session_id="one",
        incarnation_id=incarnation,
        node_id="write",
        data=data,
    )


def make_turn(
    n: int,
    *,
    args: str = "a",
    result: str = "b",
    verdict: str = "CONTINUE",
    outcome: str = "ok",
    incarnation: str = "life-1",
) -> list[AgentEvent]:
    """Return the events of a turn with one tool call, one second long."""
    call = make_event(
        EventType.TOOL_CALL_COMPLETED,
        n,
        incarnation,
        tool="search",
        turn=f"write:{n}",
        args_hash=args,
        result_hash=result,
        outcome=outcome,
        error_type="OSError" if outcome == "error" else None,
    )
    return [call, make_event(EventType.STEP_COMPLETED, n + 0.5, incarnation, index=n, verdict=verdict)]


def observe(guard: Guard, events: Iterable[AgentEvent]) -> list[GuardFinding]:
    return [found for event in events if (found := guard.observe(event)) is not None]


def make_loop(times: int, start: int = 0) -> Iterator[AgentEvent]:
    for n in range(start, start + times):
        yield from make_turn(n)


def test_progressing_work_is_not_interrupted() -> None:
    turns = [make_turn(n, args=f"a{n}", result=f"b{n}") for n in range(50)]

    assert observe(make_guard(), (each for one in turns for each in one)) == []


def test_third_equal_call_and_result_warns_the_model() -> None:
    """B26: the guard warns of the monitor's loops, even within the monitor's start grace."""
    watching = make_guard()

    before = observe(watching, make_loop(2))
    [emitted, *_] = observe(watching, make_loop(1, start=2))

    assert before == []
    assert (emitted.kind, emitted.stop) == ("doom_loop", False)
    assert "search" in emitted.evidence
    assert "3 times" in emitted.evidence


def test_continuing_loop_stops_the_visit() -> None:
    findings = observe(make_guard(), make_loop(20))

    stops = [each.stop for each in findings]
    assert stops == sorted(stops)
    assert (findings[0].stop, findings[-1].stop, findings[-1].kind) == (False, True, "doom_loop")


def test_changing_results_are_not_a_loop() -> None:
    """B28, B32: polling with changing results, or an edit-test cycle with changing output."""
    turns = [make_turn(n, result=f"b{n}") for n in range(30)]

    assert observe(make_guard(), (each for one in turns for each in one)) == []


def test_tools_on_the_exempt_list_are_ignored() -> None:
    """B28: the guard uses the settings of the monitor."""
    settings = HealthSettings(loops=LoopSettings(exempt_tools=("search",)))

    assert observe(make_guard(settings), make_loop(30)) == []


def test_repeated_error_with_any_arguments_warns_then_stops() -> None:
    """B30: an error streak."""
    turns = [make_turn(n, args=f"a{n}", result=f"b{n}", outcome="error") for n in range(20)]

    findings = observe(make_guard(), (each for one in turns for each in one))

    assert {each.kind for each in findings} == {"error_streak"}
    assert [findings[0].stop, findings[-1].stop] == [False, True]


def text_turn(n: int, verdict: str = "CONTINUE") -> list[AgentEvent]:
    """Return the events of a turn without a tool call."""
    result = make_event(EventType.LLM_CALL_COMPLETED, n, output_tokens=9)
    return [result, make_event(EventType.STEP_COMPLETED, n + 0.5, index=n, verdict=verdict)]


def test_turns_without_tool_calls_warn_the_model_and_stop_the_visit() -> None:
    """B96: in a node that has called a tool before."""
    watching = make_guard()
    observe(watching, make_turn(0))

    findings = observe(watching, (each for n in range(1, 25) for each in text_turn(n)))

    assert {each.kind for each in findings} == {"no_tool_calls"}
    assert [findings[0].stop, findings[-1].stop] == [False, True]


def test_visit_with_user_messages_is_not_idle() -> None:
    watching = make_guard()
    observe(watching, make_turn(0))
    user_messages = [make_event(EventType.CLIENT_INPUT_RECEIVED, n + 0.7) for n in range(1, 101)]

    assert (
        observe(watching, (each for n in range(1, 101) for each in [*text_turn(n), user_messages[n - 1]]))
        == []
    )


def test_consecutive_bad_steps_stop_the_visit() -> None:
    """B14: ten and fifteen warn the model, twenty stop the visit."""
    steps = [
        make_event(EventType.STEP_COMPLETED, n, index=n, verdict="RETRY", text="the same") for n in range(20)
    ]
    watching = make_guard()

    findings = [watching.observe(step) for step in steps]

    assert findings[:9] == [None] * 9
    levels = [(each.level, each.stop) for each in findings[9:] if each and each.kind == "retry_storm"]
    assert levels == [("medium", False)] * 5 + [("high", False)] * 5 + [("critical", True)]


def test_reset_guard_counts_from_zero() -> None:
    """B33: after user input, the node's counts start again."""
    watching = make_guard()
    observe(watching, make_loop(20))

    watching.reset()

    assert observe(watching, make_loop(2, start=20)) == []


def test_guard_uses_only_judge_thresholds_without_automatic_actions() -> None:
    acting = HealthSettings()
    idle = HealthSettings.model_validate({"intervention": {"enabled": False}})

    assert compute_ladder_seconds(idle) == 120 + 120 + 120
    assert compute_ladder_seconds(acting) == compute_ladder_seconds(idle) + 120 + 3 * 600 + 900


def test_failing_provider_is_not_a_loop() -> None:
    """B34: it is neither a loop nor the agent's fault."""
    calls = [make_event(EventType.LLM_CALL_COMPLETED, n, error_type="RateLimitError") for n in range(20)]

    assert observe(make_guard(), calls) == []


def test_guard_ignores_silence() -> None:
    assert observe(make_guard(), [*make_turn(0), *make_turn(40_000, args="x", result="y")]) == []


def test_resumed_visit_has_the_counts_from_before_the_kill() -> None:
    """B33: the kill is between call two and three; the new guard gets the earlier events."""
    repeated_call = make_guard()
    replayed = observe(repeated_call, make_loop(2))

    after = observe(repeated_call, make_turn(2, incarnation="life-2"))

    assert replayed == []
    assert after == observe(make_guard(), make_loop(3))


def test_bad_steps_count_across_a_kill() -> None:
    """B13, B33: only an ACCEPT or a new visit resets the count, and this is the same visit."""
    bad = [make_event(EventType.STEP_COMPLETED, n, verdict="RETRY", text="same") for n in range(19)]
    last = make_event(EventType.STEP_COMPLETED, 19, "life-2", verdict="RETRY", text="same")
    watching = make_guard()
    observe(watching, bad)

    finding = watching.observe(last)

    assert finding is not None
    assert finding.stop


def test_guard_sees_one_visit_only() -> None:
    """B13: another visit starts at zero."""
    make = make_health_guard(HealthSettings())
    observe(make(ORIGIN, "write"), make_loop(9))

    assert observe(make(ORIGIN, "write"), make_loop(2, start=9)) == []


@pytest.mark.parametrize("backwards", [-1.0, -3600.0])
def test_clock_set_back_changes_no_verdict(backwards: float) -> None:
    """B23: times are compared within the visit only."""
    events = list(make_loop(3))
    for late in events[2:]:
        late.time += backwards

    [emitted, *_] = observe(make_guard(), events)

    assert emitted.kind == "doom_loop"


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from("xyz"),
            st.sampled_from(["ACCEPT", "RETRY", "CONTINUE"]),
            st.sampled_from(["ok", "error"]),
        ),
        max_size=40,
    )
)
def test_guard_reports_the_findings_of_the_detectors(
    turns: list[tuple[str, str, str, str]],
) -> None:
    settings = HealthSettings()
    vitals = VitalSigns("scribe", "one", NOON, settings)
    watching = make_guard(settings)
    for n, (args, result, verdict, outcome) in enumerate(turns):
        for each in make_turn(n, args=args, result=result, verdict=verdict, outcome=outcome):
            vitals.apply(each, each.time)
            finding = watching.observe(each)

            known = {f.kind.value: f for f in detect(vitals, settings, each.time) if f.kind in GUARDED}
            bad = [f for f in known.values() if f.severity.rank >= 1]
            assert (finding is not None) == bool(bad)
            if finding is not None:
                assert finding.evidence == known[finding.kind].evidence
                assert finding.stop == any(f.severity is Severity.CRITICAL for f in bad)
