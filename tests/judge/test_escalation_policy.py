from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.findings import FindingKind
from queenright.health.interventions.escalation import OPTIONS
from queenright.judge import escalation_policy

AT = 1_800_000_000.0


def decide(**fields: Any) -> dict[str, Any]:
    base = {
        "escalation_id": "e-1",
        "agent_id": "researcher_agent",
        "session_id": "s",
        "incarnation_id": "life-1",
        "options": list(OPTIONS),
        "asked_at": AT,
        "more_time_given": 0,
    }
    return {**base, **fields}


def summary(*kinds: str, severity: str = "critical", ticket: bool = True, **fields: Any) -> dict[str, Any]:
    findings = [
        {"kind": k, "severity": severity, "evidence": "seen", "since": AT - 600, "ticket": ticket}
        for k in kinds
    ]
    base = {
        "status": "active",
        "agent_id": "researcher_agent",
        "node_id": "search",
        "incarnation_id": "life-1",
        "state": "stuck",
        "reason": "several calls failed",
        "waiting_reason": None,
        "last_progress": AT - 900,
        "findings": findings,
    }
    return {**base, **fields}


TABLE = {
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
def test_model_cannot_stop_a_worker_that_the_rules_would_not(kind: FindingKind) -> None:
    """However it is talked into it; then what the table says stands in its place."""
    table = escalation_policy.answer(decide(), summary(kind))

    held = escalation_policy.apply_floor(decide(), summary(kind), "terminate", "it begs to be stopped")

    assert held.decision == table.decision
    assert held.overruled == (table.decision != "terminate")
    if held.overruled:
        assert "'it begs to be stopped'" in held.reason
        assert table.reason.rstrip(".") in held.reason


@pytest.mark.parametrize(
    ("had", "minutes", "usual", "decision", "seconds"),
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
def test_more_time_is_bounded_in_all(
    had: tuple[int, float], minutes: float | None, usual: float, decision: str, seconds: float | None
) -> None:
    question = decide(more_time_given=had[0], more_minutes_given=had[1], usual_minutes=usual)

    held = escalation_policy.apply_floor(
        question, summary("stall"), "more_time", "be patient", minutes=minutes
    )
    table = escalation_policy.answer(question, summary("provider_failure"))

    assert (held.decision, held.more_time_seconds) == (decision, seconds)
    assert table.decision == decision


@pytest.mark.parametrize("kind", list(FindingKind))
def test_policy_answers_every_finding_kind(kind: FindingKind) -> None:
    expected = next((decision for decision, kinds in TABLE.items() if kind in kinds), "hand_off")

    answer = escalation_policy.answer(decide(), summary(kind))

    assert answer.decision == expected
    assert answer.reason.startswith(
        ("researcher_agent (node search) has ", "researcher_agent (node search) could ")
    )


def test_policy_answers_the_worst_of_several_findings() -> None:
    assert escalation_policy.answer(decide(), summary("retry_storm", "doom_loop")).decision == "terminate"


def test_provider_failure_takes_precedence_over_other_findings() -> None:
    """A call that hangs on a provider that is down is a stall too."""
    answer = escalation_policy.answer(decide(), summary("stall", "provider_failure"))

    assert answer.decision == "more_time"
    assert "no answer from its model provider" in answer.reason


def test_worker_that_fails_without_a_finding_is_handed_off() -> None:
    answer = escalation_policy.answer(decide(), summary(state="failing"))

    assert answer.decision == "hand_off"
    assert answer.reason.startswith("researcher_agent is failing: several calls failed.")


def test_repeated_extra_time_ends_in_a_hand_off() -> None:
    given = decide(more_time_given=escalation_policy.MAX_EXTENSIONS)

    assert escalation_policy.answer(given, summary("provider_failure")).decision == "hand_off"
    held = escalation_policy.apply_floor(given, summary("stall"), "more_time", "be patient")
    assert (held.decision, held.overruled) == ("hand_off", True)
    assert "'be patient'" in held.reason


def test_unoffered_option_is_not_chosen() -> None:
    answer = escalation_policy.answer(decide(options=["more_time", "hand_off"]), summary("stall"))

    assert answer.decision == "hand_off"
    assert "'terminate'" in answer.reason


RELIEF = [
    ({"waiting_reason": "user_input"}, "is waiting (user_input)"),
    ({"last_progress": AT + 1}, "made progress"),
    ({"incarnation_id": "life-2"}, "has restarted"),
    ({"state": "healthy", "findings": []}, "has cleared"),
    ({"state": "degraded", "findings": []}, "has cleared"),
    ({"status": "completed"}, "is over (completed)"),
]


@pytest.mark.parametrize(("now", "why"), RELIEF)
def test_recovered_worker_gets_time_and_is_not_stopped(now: dict[str, Any], why: str) -> None:
    """B69: waiting, further, another life, over: the table and the floor say the same."""
    how = {**summary("stall"), **now}

    answer = escalation_policy.answer(decide(), how)
    held = escalation_policy.apply_floor(decide(), how, "terminate", "it hangs")

    assert answer.decision == held.decision == "more_time"
    assert held.overruled
    assert why in answer.reason
    assert why in held.reason


@pytest.mark.parametrize(
    "how",
    [
        {"last_progress": None},
        {"last_progress": AT},
        {"incarnation_id": ""},
        {"state": "degraded"},
        {"findings": []},
    ],
)
def test_condition_that_still_holds_is_not_relief(how: dict[str, Any]) -> None:
    """Stuck without a finding, or with one worth a ticket in another state."""
    assert escalation_policy.relief(decide(), {**summary("heartbeat_missing"), **how}) is None


def test_only_a_checkpoint_is_progress_with_a_stale_checkpoint() -> None:
    """B66: a worker that works on and saves nothing is handed off, not given more time."""
    works_on = summary("checkpoint_stale", last_progress=AT + 60, last_checkpoint=AT - 3000)
    saved = {**works_on, "last_checkpoint": AT + 60}

    assert escalation_policy.answer(decide(), works_on).decision == "hand_off"
    assert "made progress at" in str(escalation_policy.relief(decide(), saved))


def test_unknown_worker_is_not_stopped() -> None:
    """B68"""
    assert escalation_policy.answer(decide(), None).decision == "hand_off"
    assert escalation_policy.apply_floor(decide(), None, "terminate", "it hangs").decision == "hand_off"
    assert escalation_policy.apply_floor(decide(), None, "more_time", "let it be").decision == "more_time"


@given(
    kinds=st.lists(st.sampled_from([k.value for k in FindingKind]), max_size=4),
    state=st.sampled_from(["healthy", "degraded", "stuck", "failing", "terminated"]),
    waiting=st.sampled_from([None, "user_input", "paused", "children", "backoff"]),
    progress=st.none() | st.floats(AT - 1000, AT + 1000),
    life=st.sampled_from(["life-1", "life-2", ""]),
    status=st.sampled_from(["active", "completed", "failed", "unknown"]),
    given_=st.integers(0, 5),
    proposed=st.sampled_from(OPTIONS),
    reason=st.text(max_size=300),
)
def test_model_cannot_stop_a_waiting_or_progressing_worker(
    kinds: list[str],
    state: str,
    waiting: str | None,
    progress: float | None,
    life: str,
    status: str,
    given_: int,
    proposed: Any,
    reason: str,
) -> None:
    """B69: for any words and any worker; what is proposed stands wherever the floor does not forbid it."""
    question = decide(more_time_given=given_)
    how = summary(
        *kinds,
        state=state,
        waiting_reason=waiting,
        last_progress=progress,
        incarnation_id=life,
        status=status,
    )

    held = escalation_policy.apply_floor(question, how, proposed, reason)
    by_rules = escalation_policy.answer(question, how)

    holds = escalation_policy.relief(question, how) is None
    if waiting or (progress or 0) > AT or life == "life-2" or status in ("completed", "failed"):
        assert not holds
    if not holds:
        assert "terminate" not in (held.decision, by_rules.decision)
    assert held.overruled == (held.decision != proposed)
    if held.decision == "terminate":
        assert by_rules.decision == "terminate"
    if holds and proposed == "hand_off":
        assert held.decision == proposed
    assert len(held.reason) <= 1200 + len(reason)
