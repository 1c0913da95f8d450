"""The guard inside a node: the monitor's own detectors, on the events of one visit."""

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


def guard(settings: HealthSettings | None = None) -> Guard:
    return make_health_guard(settings or HealthSettings())(ORIGIN, "write")


def event(kind: EventType, at: float, incarnation: str = "life-1", **data: object) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=NOON + at,
        agent_id="scribe",
        session_id="one",
        incarnation_id=incarnation,
        node_id="write",
        data=data,
    )


def turn(
    n: int,
    *,
    args: str = "a",
    result: str = "b",
    verdict: str = "CONTINUE",
    outcome: str = "ok",
    incarnation: str = "life-1",
) -> list[AgentEvent]:
    """A turn with one tool call, a second long."""
    call = event(
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
    return [call, event(EventType.STEP_COMPLETED, n + 0.5, incarnation, index=n, verdict=verdict)]


def observe(watching: Guard, events: Iterable[AgentEvent]) -> list[GuardFinding]:
    return [found for each in events if (found := watching.observe(each)) is not None]


def loop(times: int, start: int = 0) -> Iterator[AgentEvent]:
    for n in range(start, start + times):
        yield from turn(n)


def test_progressing_work_is_not_interrupted() -> None:
    turns = [turn(n, args=f"a{n}", result=f"b{n}") for n in range(50)]

    assert observe(guard(), (each for one in turns for each in one)) == []


def test_third_equal_call_and_result_warns_the_model() -> None:
    """B26: what the monitor calls a loop, the guard does; also within the monitor's start grace."""
    watching = guard()

    before = observe(watching, loop(2))
    [emitted, *_] = observe(watching, loop(1, start=2))

    assert before == []
    assert (emitted.kind, emitted.stop) == ("doom_loop", False)
    assert "search" in emitted.evidence
    assert "3 times" in emitted.evidence


def test_continuing_loop_stops_the_visit() -> None:
    findings = observe(guard(), loop(20))

    stops = [each.stop for each in findings]
    assert stops == sorted(stops)
    assert (findings[0].stop, findings[-1].stop, findings[-1].kind) == (False, True, "doom_loop")


def test_changing_results_are_not_a_loop() -> None:
    """B28, B32: a poll with changing results, an edit-test cycle with changing output."""
    turns = [turn(n, result=f"b{n}") for n in range(30)]

    assert observe(guard(), (each for one in turns for each in one)) == []


def test_tools_on_the_exempt_list_are_ignored() -> None:
    """B28: the guard goes by the settings of the monitor."""
    settings = HealthSettings(loops=LoopSettings(exempt_tools=("search",)))

    assert observe(guard(settings), loop(30)) == []


def test_repeated_error_with_any_arguments_warns_then_stops() -> None:
    """B30: an error streak."""
    turns = [turn(n, args=f"a{n}", result=f"b{n}", outcome="error") for n in range(20)]

    findings = observe(guard(), (each for one in turns for each in one))

    assert {each.kind for each in findings} == {"error_streak"}
    assert [findings[0].stop, findings[-1].stop] == [False, True]


def answer(n: int, verdict: str = "CONTINUE") -> list[AgentEvent]:
    """A turn without a tool call."""
    result = event(EventType.LLM_CALL_COMPLETED, n, output_tokens=9)
    return [result, event(EventType.STEP_COMPLETED, n + 0.5, index=n, verdict=verdict)]


def test_turns_without_tool_calls_warn_the_model_and_stop_the_visit() -> None:
    """B96: in a node that has called a tool before."""
    watching = guard()
    observe(watching, turn(0))

    findings = observe(watching, (each for n in range(1, 25) for each in answer(n)))

    assert {each.kind for each in findings} == {"no_tool_calls"}
    assert [findings[0].stop, findings[-1].stop] == [False, True]


def test_visit_with_user_messages_is_not_idle() -> None:
    watching = guard()
    observe(watching, turn(0))
    user_messages = [event(EventType.CLIENT_INPUT_RECEIVED, n + 0.7) for n in range(1, 101)]

    assert (
        observe(watching, (each for n in range(1, 101) for each in [*answer(n), user_messages[n - 1]])) == []
    )


def test_steps_judged_bad_again_and_again_stop_the_visit() -> None:
    """B14: at ten the model is warned, at fifteen again, and twenty stop it."""
    steps = [event(EventType.STEP_COMPLETED, n, index=n, verdict="RETRY", text="the same") for n in range(20)]
    watching = guard()

    findings = [watching.observe(step) for step in steps]

    assert findings[:9] == [None] * 9
    levels = [(each.level, each.stop) for each in findings[9:] if each and each.kind == "retry_storm"]
    assert levels == [("medium", False)] * 5 + [("high", False)] * 5 + [("critical", True)]


def test_reset_guard_counts_from_zero() -> None:
    """B33: after user input, the node has its attempts again."""
    watching = guard()
    observe(watching, loop(20))

    watching.reset()

    assert observe(watching, loop(2, start=20)) == []


def test_guard_uses_only_judge_thresholds_without_automatic_actions() -> None:
    acting = HealthSettings()
    idle = HealthSettings.model_validate({"intervention": {"enabled": False}})

    assert compute_ladder_seconds(idle) == 120 + 120 + 120
    assert compute_ladder_seconds(acting) == compute_ladder_seconds(idle) + 120 + 3 * 600 + 900


def test_failing_provider_is_not_a_loop() -> None:
    """B34: neither a loop nor the agent's fault."""
    calls = [event(EventType.LLM_CALL_COMPLETED, n, error_type="RateLimitError") for n in range(20)]

    assert observe(guard(), calls) == []


def test_guard_ignores_silence() -> None:
    assert observe(guard(), [*turn(0), *turn(40_000, args="x", result="y")]) == []


def test_visit_resumed_after_a_kill_is_judged_equally() -> None:
    """B33: between call two and three; the new life is shown what the old one had seen."""
    again = guard()
    replayed = observe(again, loop(2))

    after = observe(again, turn(2, incarnation="life-2"))

    assert replayed == []
    assert after == observe(guard(), loop(3))


def test_bad_steps_count_across_a_kill() -> None:
    """B13, B33: only an ACCEPT and a new visit reset the count, and this is the same visit."""
    bad = [event(EventType.STEP_COMPLETED, n, verdict="RETRY", text="same") for n in range(19)]
    last = event(EventType.STEP_COMPLETED, 19, "life-2", verdict="RETRY", text="same")
    watching = guard()
    observe(watching, bad)

    finding = watching.observe(last)

    assert finding is not None
    assert finding.stop


def test_guard_sees_one_visit_only() -> None:
    """B13: another visit starts at nothing."""
    make = make_health_guard(HealthSettings())
    observe(make(ORIGIN, "write"), loop(9))

    assert observe(make(ORIGIN, "write"), loop(2, start=9)) == []


@pytest.mark.parametrize("backwards", [-1.0, -3600.0])
def test_clock_set_back_changes_no_verdict(backwards: float) -> None:
    """B23."""
    events = list(loop(3))
    for late in events[2:]:
        late.time += backwards

    [emitted, *_] = observe(guard(), events)

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
    watching = guard(settings)
    for n, (args, result, verdict, outcome) in enumerate(turns):
        for each in turn(n, args=args, result=result, verdict=verdict, outcome=outcome):
            vitals.apply(each, each.time)
            finding = watching.observe(each)

            known = {f.kind.value: f for f in detect(vitals, settings, each.time) if f.kind in GUARDED}
            bad = [f for f in known.values() if f.severity.rank >= 1]
            assert (finding is not None) == bool(bad)
            if finding is not None:
                assert finding.evidence == known[finding.kind].evidence
                assert finding.stop == any(f.severity is Severity.CRITICAL for f in bad)
