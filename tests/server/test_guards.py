"""The guard inside a node, which applies the monitor's detectors to the events of one visit."""

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
from queenright.server.agents.node_guards import GUARDED_FINDINGS, make_health_guard

NOON = 1_800_000_000.0
ORIGIN = Origin(agent_id="scribe", session_id="one", graph_id="writing")


def make_guard(settings: HealthSettings | None = None) -> Guard:
    return make_health_guard(settings or HealthSettings())(ORIGIN, "write")


def make_event(kind: EventType, seconds: float, incarnation: str = "life-1", **data: object) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=NOON + seconds,
        agent_id="scribe",
        session_id="one",
        incarnation_id=incarnation,
        node_id="write",
        data=data,
    )


def make_turn(
    number: int,
    *,
    arguments: str = "a",
    result: str = "b",
    verdict: str = "CONTINUE",
    outcome: str = "ok",
    incarnation: str = "life-1",
) -> list[AgentEvent]:
    """Return the events of a turn that makes one tool call and takes one second."""
    call = make_event(
        EventType.TOOL_CALL_COMPLETED,
        number,
        incarnation,
        tool="search",
        turn=f"write:{number}",
        args_hash=arguments,
        result_hash=result,
        outcome=outcome,
        error_type="OSError" if outcome == "error" else None,
    )
    return [
        call,
        make_event(EventType.STEP_COMPLETED, number + 0.5, incarnation, index=number, verdict=verdict),
    ]


def observe_all(guard: Guard, events: Iterable[AgentEvent]) -> list[GuardFinding]:
    return [finding for event in events if (finding := guard.observe(event)) is not None]


def make_loop(times: int, start: int = 0) -> Iterator[AgentEvent]:
    for number in range(start, start + times):
        yield from make_turn(number)


def test_progressing_work_is_not_interrupted() -> None:
    turns = [make_turn(number, arguments=f"a{number}", result=f"b{number}") for number in range(50)]

    assert observe_all(make_guard(), (event for turn in turns for event in turn)) == []


def test_third_identical_call_and_result_warns_the_model() -> None:
    """B26: the guard warns about the loops that the monitor finds, even within the monitor's start grace."""
    guard = make_guard()

    earlier_findings = observe_all(guard, make_loop(2))
    [finding, *_] = observe_all(guard, make_loop(1, start=2))

    assert earlier_findings == []
    assert (finding.kind, finding.stop) == ("doom_loop", False)
    assert "search" in finding.evidence
    assert "3 times" in finding.evidence


def test_continuing_loop_stops_the_visit() -> None:
    findings = observe_all(make_guard(), make_loop(20))

    stops = [finding.stop for finding in findings]
    assert stops == sorted(stops)
    assert (findings[0].stop, findings[-1].stop, findings[-1].kind) == (False, True, "doom_loop")


def test_changing_results_are_not_a_loop() -> None:
    """B28, B32: examples are polling with changing results, and an edit-test cycle with changing output."""
    turns = [make_turn(number, result=f"b{number}") for number in range(30)]

    assert observe_all(make_guard(), (event for turn in turns for event in turn)) == []


def test_tools_on_the_exempt_list_are_ignored() -> None:
    """B28: the guard uses the monitor's settings."""
    settings = HealthSettings(loops=LoopSettings(exempt_tools=("search",)))

    assert observe_all(make_guard(settings), make_loop(30)) == []


def test_repeated_error_with_different_arguments_warns_and_then_stops() -> None:
    """B30: this is an error streak."""
    turns = [make_turn(n, arguments=f"a{n}", result=f"b{n}", outcome="error") for n in range(20)]

    findings = observe_all(make_guard(), (event for turn in turns for event in turn))

    assert {finding.kind for finding in findings} == {"error_streak"}
    assert [findings[0].stop, findings[-1].stop] == [False, True]


def make_text_turn(number: int, verdict: str = "CONTINUE") -> list[AgentEvent]:
    """Return the events of a turn without a tool call."""
    result = make_event(EventType.LLM_CALL_COMPLETED, number, output_tokens=9)
    return [result, make_event(EventType.STEP_COMPLETED, number + 0.5, index=number, verdict=verdict)]


def test_turns_without_tool_calls_warn_the_model_and_stop_the_visit() -> None:
    """B96: this applies in a node that has called a tool before."""
    guard = make_guard()
    observe_all(guard, make_turn(0))

    findings = observe_all(guard, (event for number in range(1, 25) for event in make_text_turn(number)))

    assert {finding.kind for finding in findings} == {"no_tool_calls"}
    assert [findings[0].stop, findings[-1].stop] == [False, True]


def test_visit_with_user_messages_does_not_count_as_idle() -> None:
    guard = make_guard()
    observe_all(guard, make_turn(0))
    user_messages = [make_event(EventType.CLIENT_INPUT_RECEIVED, number + 0.7) for number in range(1, 101)]

    assert (
        observe_all(
            guard,
            (
                event
                for number in range(1, 101)
                for event in [*make_text_turn(number), user_messages[number - 1]]
            ),
        )
        == []
    )


def test_consecutive_bad_steps_stop_the_visit() -> None:
    """B14: ten and fifteen bad steps warn the model, and twenty stop the visit."""
    steps = [
        make_event(EventType.STEP_COMPLETED, number, index=number, verdict="RETRY", text="the same")
        for number in range(20)
    ]
    guard = make_guard()

    findings = [guard.observe(step) for step in steps]

    assert findings[:9] == [None] * 9
    levels = [
        (finding.level, finding.stop) for finding in findings[9:] if finding and finding.kind == "retry_storm"
    ]
    assert levels == [("medium", False)] * 5 + [("high", False)] * 5 + [("critical", True)]


def test_reset_guard_counts_from_zero() -> None:
    """B33: after user input, the counts of the node start again."""
    guard = make_guard()
    observe_all(guard, make_loop(20))

    guard.reset()

    assert observe_all(guard, make_loop(2, start=20)) == []


def test_guard_without_automatic_actions_uses_the_judge_thresholds() -> None:
    acting_settings = HealthSettings()
    passive_settings = HealthSettings.model_validate({"intervention": {"enabled": False}})

    assert compute_ladder_seconds(passive_settings) == 120 + 120 + 120
    assert (
        compute_ladder_seconds(acting_settings)
        == compute_ladder_seconds(passive_settings) + 120 + 3 * 600 + 900
    )


def test_failing_provider_is_not_a_loop() -> None:
    """B34: it is neither a loop nor a fault of the agent."""
    calls = [
        make_event(EventType.LLM_CALL_COMPLETED, number, error_type="RateLimitError") for number in range(20)
    ]

    assert observe_all(make_guard(), calls) == []


def test_guard_ignores_silence() -> None:
    assert observe_all(make_guard(), [*make_turn(0), *make_turn(40_000, arguments="x", result="y")]) == []


def test_resumed_visit_has_the_counts_from_before_the_kill() -> None:
    """B33: the kill is between calls two and three, and the new guard gets the earlier events."""
    guard = make_guard()
    earlier_findings = observe_all(guard, make_loop(2))

    later_findings = observe_all(guard, make_turn(2, incarnation="life-2"))

    assert earlier_findings == []
    assert later_findings == observe_all(make_guard(), make_loop(3))


def test_bad_steps_count_across_a_kill() -> None:
    """B13, B33: only an ACCEPT or a new visit resets the count, and this is still the same visit."""
    bad_steps = [
        make_event(EventType.STEP_COMPLETED, number, verdict="RETRY", text="same") for number in range(19)
    ]
    last_step = make_event(EventType.STEP_COMPLETED, 19, "life-2", verdict="RETRY", text="same")
    guard = make_guard()
    observe_all(guard, bad_steps)

    finding = guard.observe(last_step)

    assert finding is not None
    assert finding.stop


def test_guard_counts_only_one_visit() -> None:
    """B13: another visit starts at zero."""
    make_step = make_health_guard(HealthSettings())
    observe_all(make_step(ORIGIN, "write"), make_loop(9))

    assert observe_all(make_step(ORIGIN, "write"), make_loop(2, start=9)) == []


@pytest.mark.parametrize("backwards", [-1.0, -3600.0])
def test_clock_that_is_set_back_does_not_change_the_findings(backwards: float) -> None:
    """B23: times are only compared within the visit."""
    events = list(make_loop(3))
    for event in events[2:]:
        event.time += backwards

    [finding, *_] = observe_all(make_guard(), events)

    assert finding.kind == "doom_loop"


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
    guard = make_guard(settings)
    for number, (args, result, verdict, outcome) in enumerate(turns):
        for event in make_turn(number, arguments=args, result=result, verdict=verdict, outcome=outcome):
            vitals.apply(event, event.time)
            finding = guard.observe(event)

            findings_by_kind = {
                item.kind.value: item
                for item in detect(vitals, settings, event.time)
                if item.kind in GUARDED_FINDINGS
            }
            bad_findings = [item for item in findings_by_kind.values() if item.severity.rank >= 1]
            assert (finding is not None) == bool(bad_findings)
            if finding is not None:
                assert finding.evidence == findings_by_kind[finding.kind].evidence
                assert finding.stop == any(item.severity is Severity.CRITICAL for item in bad_findings)
