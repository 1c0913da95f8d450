import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.findings import FindingKind, Severity
from queenright.judge import ticket_policy, wording

TIME = 1_800_000_000.0


def make_finding(
    kind: str = "doom_loop", severity: str = "high", *, raises_ticket: bool = True
) -> dict[str, Any]:
    return {
        "kind": kind,
        "severity": severity,
        "evidence": "search was called 9 times",
        "since": TIME,
        "ticket": raises_ticket,
    }


def make_summary(*findings: dict[str, Any], **fields: Any) -> dict[str, Any]:
    base = {
        "agent_id": "researcher_agent",
        "node_id": "search",
        "steps_since_last_accept": 6,
        "stall_minutes": 0.1,
        "recent_verdicts": ["RETRY"],
        "evidence_snippet": "no results",
    }
    return {**base, "findings": list(findings), **fields}


def make_ticket(severity: str = "medium", kind: str = "retry_storm", **fields: Any) -> dict[str, Any]:
    base = {
        "ticket_id": "t",
        "agent_id": "researcher_agent",
        "node_id": "search",
        "cause": "researcher_agent repeats itself.",
        "suggested_action": "Restart it.",
        "steps_since_last_accept": 6,
        "stall_minutes": None,
        "recent_verdicts": ["RETRY"],
        "occurrences": 1,
    }
    return {**base, "severity": severity, "kind": kind, **fields}


def test_no_ticket_without_a_finding() -> None:
    assert ticket_policy.draft_ticket(make_summary()) is None


@pytest.mark.parametrize(
    ("kind", "progress", "comparison"),
    [
        ("doom_loop", TIME - 60, "no progress since the onset at 08:00:00 UTC (the last at 07:59:00 UTC)"),
        ("doom_loop", TIME + 60, "last progress at 08:01:00 UTC, after the onset at 08:00:00 UTC"),
        ("doom_loop", None, "no progress since the onset at 08:00:00 UTC"),
        (
            "checkpoint_stale",
            TIME + 60,
            "no checkpoint since the onset at 08:00:00 UTC (the last at 08:00:00 UTC)",
        ),
    ],
)
def test_reasoning_states_the_compared_times(kind: str, progress: float | None, comparison: str) -> None:
    summary = make_summary(
        make_finding(kind),
        looked_at=TIME + 300,
        last_progress=progress,
        last_checkpoint=TIME,
        stall_minutes=2.0,
    )

    draft = ticket_policy.draft_ticket(summary)

    assert draft is not None
    assert draft.judge_reasoning == (
        f"Found by the rules: {kind.replace('_', ' ')}, high severity: search was called 9 times. "
        f"At 08:05:00 UTC: {comparison}, 6 bad steps since the last accepted one, last activity 2 min ago."
    )


def test_onset_of_another_day_has_its_date() -> None:
    draft = ticket_policy.draft_ticket(make_summary(make_finding(), looked_at=TIME + 86_400))

    assert draft is not None
    assert "since 2027-01-15 08:00 UTC" in draft.cause


def test_finding_without_ticket_opens_none() -> None:
    """B14: this holds for the warning band and for everything in the start grace."""
    assert (
        ticket_policy.draft_ticket(make_summary(make_finding("retry_storm", "low", raises_ticket=False)))
        is None
    )


def test_worst_finding_names_the_ticket() -> None:
    draft = ticket_policy.draft_ticket(
        make_summary(make_finding("stall", "medium"), make_finding("doom_loop", "critical"))
    )

    assert draft is not None
    assert draft.severity == "critical"
    assert draft.cause.startswith(
        "researcher_agent (node search) has been going in circles since 08:00 UTC: "
    )


@pytest.mark.parametrize(
    "value", [None, [], [{}], ["x"], [{"kind": "bees", "severity": "high", "since": 1}], 7 * [{}]]
)
def test_invalid_findings_are_ignored(value: Any) -> None:
    assert ticket_policy.draft_ticket({"findings": value}) is None


@pytest.mark.parametrize(
    ("draft", "decision"),
    [
        (make_ticket("low", steps_since_last_accept=7), "dismiss"),
        (make_ticket("low", steps_since_last_accept=10), "intervene"),
        (make_ticket("medium", steps_since_last_accept=9), "dismiss"),
        (make_ticket("medium", steps_since_last_accept=10), "intervene"),
        (make_ticket("medium", stall_minutes=3.9), "dismiss"),
        (make_ticket("medium", stall_minutes=4.0), "intervene"),
        (make_ticket("high", steps_since_last_accept=0), "intervene"),
        (make_ticket("critical", steps_since_last_accept=0), "intervene"),
    ],
)
def test_triage_decides_by_its_thresholds(draft: dict[str, Any], decision: str) -> None:
    """B25, B47: a stall of exactly the threshold counts; high and critical go to the operator."""
    assert ticket_policy.triage(draft, None).decision == decision


@pytest.mark.parametrize("verdicts", [["RETRY"], ["ACCEPT"]])
@pytest.mark.parametrize("severity", ["low", "medium"])
@pytest.mark.parametrize("kind", FindingKind)
def test_step_accepted_before_the_onset_dismisses_only_a_retry_storm(
    kind: FindingKind, severity: str, verdicts: list[str]
) -> None:
    """An accepted step either ends a finding or has nothing to do with it; so does the count of bad steps."""
    ticket = make_ticket(severity, kind.value, steps_since_last_accept=0, recent_verdicts=verdicts)
    summary = make_summary(
        make_finding(kind.value, severity),
        steps_since_last_accept=0,
        recent_verdicts=verdicts,
        last_progress=TIME - 60,
    )

    decisions = [ticket_policy.triage(ticket, health) for health in (None, summary)]

    expected = "dismiss" if kind is FindingKind.RETRY_STORM else "intervene"
    assert [decision.decision for decision in decisions] == [expected, expected]
    assert "accepted:" not in decisions[1].text


@pytest.mark.parametrize("kind", [kind for kind in FindingKind if kind is not FindingKind.RETRY_STORM])
def test_retry_storm_is_not_dismissed_with_another_finding(kind: FindingKind) -> None:
    """A dismissed ticket would also cover its other findings."""
    findings = make_finding("retry_storm", "medium"), make_finding(kind.value, "medium")

    assert ticket_policy.triage(make_ticket(), make_summary(*findings)).decision == "intervene"
    assert (
        ticket_policy.triage(make_ticket(active_kinds=["retry_storm", kind.value]), None).decision
        == "intervene"
    )


@pytest.mark.parametrize("severity", list(Severity))
def test_resolved_condition_is_dismissed_at_any_severity(severity: Severity) -> None:
    """B47: triage checks the worker's current state."""
    decision = ticket_policy.triage(make_ticket(severity.value), make_summary())

    assert (decision.decision, decision.text) == ("dismiss", "recovered before triage")


def test_dismissal_of_a_recovered_worker_states_the_times() -> None:
    decision = ticket_policy.triage(
        make_ticket(), make_summary(looked_at=TIME + 300, last_progress=TIME + 240)
    )

    assert decision.text == (
        "recovered before triage: no finding needs a ticket at 08:05:00 UTC, last progress at 08:04:00 UTC"
    )


def test_dismissal_states_the_compared_numbers() -> None:
    decision = ticket_policy.triage(
        make_ticket(), make_summary(make_finding("retry_storm", "medium"), stall_minutes=2.0)
    )

    assert decision.text == (
        "only 6 bad steps since the last ACCEPT (fewer than 10), and active 2 min ago (less than 4 min): "
        "it may recover on its own"
    )


def test_triage_uses_the_current_numbers() -> None:
    decision = ticket_policy.triage(
        make_ticket("medium"), make_summary(make_finding("retry_storm"), steps_since_last_accept=12)
    )

    assert decision.decision == "intervene"


@given(
    severity=st.sampled_from(["high", "critical"]),
    kind=st.sampled_from(list(FindingKind)),
    steps=st.integers(0, 300),
    cause=st.text(max_size=200),
    verdicts=st.lists(st.sampled_from(["ACCEPT", "RETRY", "CONTINUE"]), max_size=5),
)
def test_ticket_text_cannot_dismiss_a_standing_condition(
    severity: str, kind: FindingKind, steps: int, cause: str, verdicts: list[str]
) -> None:
    """B52: this holds for any text and any numbers."""
    ticket = make_ticket(
        severity, kind.value, steps_since_last_accept=steps, cause=cause, recent_verdicts=verdicts
    )

    decision = ticket_policy.triage(ticket, make_summary(make_finding(kind.value, severity)))

    assert decision.decision == "intervene"
    assert "researcher_agent" in decision.text


@pytest.mark.parametrize("kind", list(FindingKind))
def test_every_finding_kind_has_an_actionable_analysis(kind: FindingKind) -> None:
    """
    The analysis has the worker, problem and start, the impact, and an advice, in three to five whole
    sentences.
    """
    draft = ticket_policy.draft_ticket(make_summary(make_finding(kind.value)))
    assert draft is not None
    text = ticket_policy.analysis(
        make_ticket("high", kind.value, cause=draft.cause, suggested_action=draft.suggested_action)
    )

    assert text.startswith(("researcher_agent (node search) has ", "researcher_agent (node search) could "))
    assert all(part in text for part in ("08:00 UTC", "search", "9 times"))
    assert draft.suggested_action in text
    assert text.endswith(".")
    assert 3 <= text.count(". ") + 1 <= 5
    assert 150 < len(text) < 520
    assert "  " not in text


@pytest.mark.parametrize("kind", FindingKind)
def test_commands_in_advice_name_the_worker(kind: FindingKind) -> None:
    """B102: the commands have no placeholders, and names with special characters are quoted for the shell."""
    advice = wording.advice(kind, "my agent", "run; 1")

    assert not re.search(r"[{}]|\b[A-Z]{4,}\b", advice)
    if "queenright recover" in advice:
        assert "queenright recover 'run; 1' " in advice
    if "queenright events" in advice:
        assert "queenright events --agent 'my agent' " in advice


def test_every_kind_has_distinct_texts() -> None:
    texts = [
        (wording.impact(kind), wording.advice(kind, "a", "s"), wording.cause(kind, agent="a"))
        for kind in FindingKind
    ]

    for column in zip(*texts, strict=True):
        assert len(set(column)) == len(FindingKind)


def test_numbers_appear_only_if_informative() -> None:
    text = ticket_policy.analysis(make_ticket("high", "doom_loop", stall_minutes=6.2, occurrences=3))

    assert all(part in text for part in ("6 bad steps", "6 min", "3 times"))
    assert "bad step" not in ticket_policy.analysis(make_ticket("high", "retry_storm"))
    assert "activity" not in ticket_policy.analysis(make_ticket("high", "doom_loop", stall_minutes=0.2))


@pytest.mark.parametrize(
    ("minutes", "expected"), [(1, "60 s"), (4, "4 min"), (89, "89 min"), (90, "1.5 h"), (600, "10 h")]
)
def test_durations_have_readable_units(minutes: float, expected: str) -> None:
    assert wording.numbers(bad_steps=1, stall_minutes=minutes).endswith(f"last activity {expected} ago")


def test_multiline_evidence_becomes_one_line() -> None:
    text = wording.cause(FindingKind.STALL, agent="a", evidence="one\n  two\t" + "x" * 500)

    assert "one two x" in text
    assert len(text) < 300
