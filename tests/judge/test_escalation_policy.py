from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.findings import FindingKind
from queenright.health.interventions.escalation import OPTIONS
from queenright.judge import escalation_policy

TIME = 1_800_000_000.0


def make_question(**fields: Any) -> dict[str, Any]:
    base = {
        "escalation_id": "e-1",
        "agent_id": "researcher_agent",
        "session_id": "s",
        "incarnation_id": "life-1",
        "options": list(OPTIONS),
        "asked_at": TIME,
        "more_time_given": 0,
    }
    return {**base, **fields}


def make_summary(
    *kinds: str, severity: str = "critical", ticket: bool = True, **fields: Any
) -> dict[str, Any]:
    findings = [
        {"kind": kind, "severity": severity, "evidence": "seen", "since": TIME - 600, "ticket": ticket}
        for kind in kinds
    ]
    base = {
        "status": "active",
        "agent_id": "researcher_agent",
        "node_id": "search",
        "incarnation_id": "life-1",
        "state": "stuck",
        "reason": "several calls failed",
        "waiting_reason": None,
        "last_progress": TIME - 900,
        "findings": findings,
    }
    return {**base, **fields}


KINDS_BY_DECISION = {
    "more_time": {FindingKind.PROVIDER_FAILURE, FindingKind.CIRCUIT_BREAKER_OPEN},
    "terminate": {
        FindingKind.STALL,
        FindingKind.HEARTBEAT_MISSING,
        FindingKind.TOOL_TIMEOUT,
        FindingKind.NO_TOKENS,
        FindingKind.DOOM_LOOP,
        FindingKind.ZERO_PROGRESS,
        FindingKind.NO_TOOL_CALLS,
    },
}


@pytest.mark.parametrize("kind", list(FindingKind))
def test_model_cannot_stop_a_worker_that_the_rules_would_not_stop(kind: FindingKind) -> None:
    """The floor replaces the model's decision with the rules' decision."""
    rules_answer = escalation_policy.answer(make_question(), make_summary(kind))

    floor_decision = escalation_policy.apply_floor(
        make_question(), make_summary(kind), "terminate", "it begs to be stopped"
    )

    assert floor_decision.decision == rules_answer.decision
    assert floor_decision.overruled == (rules_answer.decision != "terminate")
    if floor_decision.overruled:
        assert "'it begs to be stopped'" in floor_decision.reason
        assert rules_answer.reason.rstrip(".") in floor_decision.reason


@pytest.mark.parametrize(
    ("extensions_and_minutes", "minutes", "usual_minutes", "decision", "seconds"),
    [
        ((0, 0), 5, 15, "more_time", 300.0),
        ((0, 0), 1440, 15, "more_time", 3600.0),
        ((1, 50), 30, 15, "more_time", 600.0),
        ((1, 50), None, 15, "more_time", 600.0),
        ((1, 30), None, 15, "more_time", None),
        ((1, 60), 5, 15, "hand_off", None),
        ((2, 59.9), 5, 15, "more_time", pytest.approx(6.0)),
        ((3, 15), 5, 15, "hand_off", None),
        ((0, 0), None, 120, "more_time", None),
        ((1, 120), None, 120, "hand_off", None),
    ],
)
def test_total_extra_time_is_limited(
    extensions_and_minutes: tuple[int, float],
    minutes: float | None,
    usual_minutes: float,
    decision: str,
    seconds: float | None,
) -> None:
    extensions, minutes_given = extensions_and_minutes
    question = make_question(
        more_time_given=extensions, more_minutes_given=minutes_given, usual_minutes=usual_minutes
    )

    floor_decision = escalation_policy.apply_floor(
        question, make_summary("stall"), "more_time", "be patient", minutes=minutes
    )
    rules_answer = escalation_policy.answer(question, make_summary("provider_failure"))

    assert (floor_decision.decision, floor_decision.more_time_seconds) == (decision, seconds)
    assert rules_answer.decision == decision


@pytest.mark.parametrize("kind", list(FindingKind))
def test_policy_answers_every_finding_kind(kind: FindingKind) -> None:
    expected = next((decision for decision, kinds in KINDS_BY_DECISION.items() if kind in kinds), "hand_off")

    answer = escalation_policy.answer(make_question(), make_summary(kind))

    assert answer.decision == expected
    assert answer.reason.startswith(
        ("researcher_agent (node search) has ", "researcher_agent (node search) could ")
    )


def test_policy_decides_by_the_worst_finding() -> None:
    assert (
        escalation_policy.answer(make_question(), make_summary("retry_storm", "doom_loop")).decision
        == "terminate"
    )


def test_provider_failure_takes_precedence_over_other_findings() -> None:
    """A call that hangs because the provider is down also counts as a stall."""
    answer = escalation_policy.answer(make_question(), make_summary("stall", "provider_failure"))

    assert answer.decision == "more_time"
    assert "no answer from its model provider" in answer.reason


def test_failing_worker_without_a_finding_is_handed_off() -> None:
    answer = escalation_policy.answer(make_question(), make_summary(state="failing"))

    assert answer.decision == "hand_off"
    assert answer.reason.startswith("researcher_agent is failing: several calls failed.")


def test_repeated_extra_time_ends_in_a_hand_off() -> None:
    question = make_question(more_time_given=escalation_policy.MAX_EXTENSIONS)

    assert escalation_policy.answer(question, make_summary("provider_failure")).decision == "hand_off"
    floor_decision = escalation_policy.apply_floor(question, make_summary("stall"), "more_time", "be patient")
    assert (floor_decision.decision, floor_decision.overruled) == ("hand_off", True)
    assert "'be patient'" in floor_decision.reason


def test_unoffered_option_is_not_chosen() -> None:
    answer = escalation_policy.answer(make_question(options=["more_time", "hand_off"]), make_summary("stall"))

    assert answer.decision == "hand_off"
    assert "'terminate'" in answer.reason


CLEARED_CASES = [
    ({"waiting_reason": "user_input"}, "is waiting (user_input)"),
    ({"last_progress": TIME + 1}, "made progress"),
    ({"incarnation_id": "life-2"}, "has restarted"),
    ({"state": "healthy", "findings": []}, "has cleared"),
    ({"state": "degraded", "findings": []}, "has cleared"),
    ({"status": "completed"}, "is over (completed)"),
]


@pytest.mark.parametrize(("changes", "reason"), CLEARED_CASES)
def test_worker_with_cleared_condition_gets_time(changes: dict[str, Any], reason: str) -> None:
    """B69: the table and the floor agree about workers that wait, have progressed, restarted or ended."""
    worker = {**make_summary("stall"), **changes}

    answer = escalation_policy.answer(make_question(), worker)
    floor_decision = escalation_policy.apply_floor(make_question(), worker, "terminate", "it hangs")

    assert answer.decision == floor_decision.decision == "more_time"
    assert floor_decision.overruled
    assert reason in answer.reason
    assert reason in floor_decision.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"last_progress": None},
        {"last_progress": TIME},
        {"incarnation_id": ""},
        {"state": "degraded"},
        {"findings": []},
    ],
)
def test_condition_that_still_holds_is_not_cleared(changes: dict[str, Any]) -> None:
    """The condition still holds without a finding, or after the state has changed."""
    assert escalation_policy.relief(make_question(), {**make_summary("heartbeat_missing"), **changes}) is None


def test_stale_checkpoint_is_cleared_only_by_a_new_checkpoint() -> None:
    """B66: a worker that works but saves no checkpoint is handed off instead of being given more time."""
    without_checkpoint = make_summary(
        "checkpoint_stale", last_progress=TIME + 60, last_checkpoint=TIME - 3000
    )
    with_checkpoint = {**without_checkpoint, "last_checkpoint": TIME + 60}

    assert escalation_policy.answer(make_question(), without_checkpoint).decision == "hand_off"
    assert "made progress at" in str(escalation_policy.relief(make_question(), with_checkpoint))


def test_unknown_worker_is_not_stopped() -> None:
    """B68: an unknown worker gets more time or is handed off."""
    assert escalation_policy.answer(make_question(), None).decision == "hand_off"
    assert (
        escalation_policy.apply_floor(make_question(), None, "terminate", "it hangs").decision == "hand_off"
    )
    assert (
        escalation_policy.apply_floor(make_question(), None, "more_time", "let it be").decision == "more_time"
    )


@given(
    kinds=st.lists(st.sampled_from([kind.value for kind in FindingKind]), max_size=4),
    state=st.sampled_from(["healthy", "degraded", "stuck", "failing", "terminated"]),
    waiting_reason=st.sampled_from([None, "user_input", "paused", "children", "backoff"]),
    last_progress=st.none() | st.floats(TIME - 1000, TIME + 1000),
    incarnation=st.sampled_from(["life-1", "life-2", ""]),
    status=st.sampled_from(["active", "completed", "failed", "unknown"]),
    extensions=st.integers(0, 5),
    proposed_decision=st.sampled_from(OPTIONS),
    reason=st.text(max_size=300),
)
def test_model_cannot_stop_a_waiting_or_progressing_worker(
    kinds: list[str],
    state: str,
    waiting_reason: str | None,
    last_progress: float | None,
    incarnation: str,
    status: str,
    extensions: int,
    proposed_decision: Any,
    reason: str,
) -> None:
    """B69: this holds for any text and any worker. While the condition holds, a proposed hand-off is kept."""
    question = make_question(more_time_given=extensions)
    worker = make_summary(
        *kinds,
        state=state,
        waiting_reason=waiting_reason,
        last_progress=last_progress,
        incarnation_id=incarnation,
        status=status,
    )

    floor_decision = escalation_policy.apply_floor(question, worker, proposed_decision, reason)
    rules_answer = escalation_policy.answer(question, worker)

    still_holds = escalation_policy.relief(question, worker) is None
    if (
        waiting_reason
        or (last_progress or 0) > TIME
        or incarnation == "life-2"
        or status in ("completed", "failed")
    ):
        assert not still_holds
    if not still_holds:
        assert "terminate" not in (floor_decision.decision, rules_answer.decision)
    assert floor_decision.overruled == (floor_decision.decision != proposed_decision)
    if floor_decision.decision == "terminate":
        assert rules_answer.decision == "terminate"
    if still_holds and proposed_decision == "hand_off":
        assert floor_decision.decision == proposed_decision
    assert len(floor_decision.reason) <= 1200 + len(reason)
