"""Tickets as values: the draft of a model, and the changes of a ticket."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets import ticket_lifecycle as lifecycle
from queenright.health.tickets.ticket import (
    EscalationTicket,
    TicketClosedError,
    TicketRejectedError,
    TicketStatus,
    TicketStatusError,
    WorkerFacts,
    fingerprint,
    mismatches,
    parse_draft,
)

LOOP, STORM = FindingKind.DOOM_LOOP, FindingKind.RETRY_STORM
GOOD: dict[str, Any] = {
    "severity": "high",
    "cause": "calls search with the same arguments",
    "judge_reasoning": "17 bad steps, nothing new in any of them",
    "suggested_action": "look at the search tool",
    "evidence_snippet": "search: 0 results",
}


def draft(**fields: Any) -> str:
    return json.dumps({**GOOD, **fields})


def facts(**fields: Any) -> WorkerFacts:
    return WorkerFacts.model_validate(
        {
            "agent_id": "bee",
            "session_id": "s1",
            "node_id": "researcher",
            "graph_id": "g",
            "incarnation_id": "i1",
            "recent_verdicts": ("RETRY",),
            "total_steps_checked": 20,
            "steps_since_last_accept": 17,
            "stall_minutes": None,
            "worker_trace_id": "",
            "worker_span_id": "",
            **fields,
        }
    )


def ticket(status: TicketStatus = TicketStatus.OPEN, **fields: Any) -> EscalationTicket:
    return EscalationTicket.model_validate(
        {
            **dict(facts()),
            **GOOD,
            "ticket_id": "t1",
            "severity": Severity.HIGH,
            "kind": LOOP,
            "fingerprint": fingerprint("bee", "s1", "researcher", LOOP),
            "active_kinds": (LOOP,),
            "status": status,
            "first_seen": 100.0,
            "last_seen": 100.0,
            "updated_at": 100.0,
            **fields,
        }
    )


# -- the draft of a model -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        draft(),
        f"\n  {draft()}\n",
        f"```json\n{draft()}\n```",
        f"```\n{draft()}\n```\n",
        draft(
            total_steps_checked=20, steps_since_last_accept=0, stall_minutes=None, recent_verdicts=["RETRY"]
        ),
        draft(stall_minutes=4, agent_id="bee", evidence_snippet=""),
    ],
)
def test_whole_draft_is_accepted_bare_or_fenced(text: str) -> None:
    """B35: fenced JSON is accepted."""
    assert parse_draft(text).severity is Severity.HIGH


@pytest.mark.parametrize("name", list(GOOD))
def test_missing_field_is_named(name: str) -> None:
    """B35: a missing field is refused with an error that names it."""
    with pytest.raises(TicketRejectedError) as caught:
        parse_draft(json.dumps({key: value for key, value in GOOD.items() if key != name}))

    assert caught.value.errors == (f"{name}: is required",)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cause": ""}, "cause: it must not be empty, got ''"),
        ({"judge_reasoning": "  \n"}, "judge_reasoning: it must not be empty"),
        ({"suggested_action": 5}, "suggested_action: it must be text, got 5"),
        ({"severity": "urgent"}, "severity: must be one of low, medium, high, critical, got 'urgent'"),
        ({"severity": "HIGH"}, "severity: must be one of low, medium, high, critical, got 'HIGH'"),
        ({"severity": None}, "severity: must be one of low, medium, high, critical, got None"),
        (
            {"total_steps_checked": -1},
            "total_steps_checked: it must be at least 0",
        ),
        ({"steps_since_last_accept": "17"}, "steps_since_last_accept: it must be a whole number"),
        ({"steps_since_last_accept": True}, "steps_since_last_accept: it must be a whole number"),
        ({"stall_minutes": -0.5}, "stall_minutes: it must be at least 0, got -0.5"),
        ({"recent_verdicts": "RETRY"}, "recent_verdicts: it must be a list"),
        ({"evidence_snippet": "x" * 501}, "evidence_snippet: it must have at most 500 characters"),
        ({"cause": "x" * 1001}, "cause: it must have at most 1,000 characters"),
        ({"mood": "grim"}, "mood: is not a field of a ticket; leave it out"),
        ({"ticket_id": "t9"}, "ticket_id: is set by the service; leave it out"),
        ({"created_at": "now"}, "created_at: is set by the service; leave it out"),
        ({"status": "resolved"}, "status: is set by the service; leave it out"),
        ({"occurrences": 99}, "occurrences: is set by the service; leave it out"),
    ],
)
def test_wrong_field_error_names_allowed_values(fields: dict[str, Any], error: str) -> None:
    """B35, B36: wrong values, extra keys, and fields that the model cannot set are refused."""
    with pytest.raises(TicketRejectedError) as caught:
        parse_draft(draft(**fields))

    assert len(caught.value.errors) == 1
    assert caught.value.errors[0].startswith(error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "is empty"),
        ("```json\n\n```", "is empty"),
        ("[]", "not a list"),
        (f"[{json.dumps(GOOD)}]", "not a list"),
        ("null", "not null"),
        ('"high"', "not a string"),
        ("7", "not a number"),
        ("true", "not true or false"),
        ("the worker is stuck", "is not JSON (Expecting value, line 1 column 1)"),
        (f"Here you are:\n{json.dumps(GOOD)}", "is not JSON"),
        (f"{json.dumps(GOOD)}{json.dumps(GOOD)}", "is not JSON (Extra data"),
        (json.dumps(GOOD)[:-1], "is not JSON"),
        ('{"severity": "low", "severity": "high"}', "severity: appears twice"),
        ('{"stall_minutes": NaN}', "NaN is not a JSON value"),
        ("[" * 100_000, "at most 65536 are read"),
        ("[" * 60_000, "is not a JSON object"),
        ('{"total_steps_checked": ' + "9" * 5000 + "}", "is not a JSON object"),
    ],
)
def test_non_object_is_refused_with_the_reason(text: str, error: str) -> None:
    """B35: a list, invalid text or nothing is refused."""
    with pytest.raises(TicketRejectedError, match=r"^ticket refused: ") as caught:
        parse_draft(text)

    assert error in str(caught.value)


def test_all_errors_are_listed_without_secrets() -> None:
    with pytest.raises(TicketRejectedError) as caught:
        parse_draft(draft(severity="sk-live0123456789abcdef", cause="", mood=1))

    assert sorted(error.split(":")[0] for error in caught.value.errors) == ["cause", "mood", "severity"]
    assert "0123456789abcdef" not in str(caught.value)


_anything = st.recursive(
    st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
)


@given(
    st.text()
    | _anything.map(json.dumps)
    | st.fixed_dictionaries(dict.fromkeys(GOOD, _anything)).map(json.dumps)
)
def test_any_model_output_is_a_draft_or_refused(text: str) -> None:
    """B35: each answer has a defined outcome."""
    try:
        parse_draft(text)
    except TicketRejectedError as refusal:
        errors = refusal.errors
    else:
        errors = ("none",)

    assert errors


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"agent_id": "wasp"}, "agent_id: the worker's is 'bee', got 'wasp'"),
        ({"session_id": ""}, "session_id: the worker's is 's1', got ''"),
        ({"node_id": "writer"}, "node_id: the worker's is 'researcher', got 'writer'"),
        ({"graph_id": "h"}, "graph_id: the worker's is 'g', got 'h'"),
        ({"total_steps_checked": 21}, "total_steps_checked: the worker's is 20, got 21"),
        ({"steps_since_last_accept": 18}, "steps_since_last_accept: the worker's is 17, got 18"),
        ({"stall_minutes": 5.0}, "stall_minutes: the worker's is None, got 5.0"),
    ],
)
def test_draft_about_a_different_worker_is_detected(fields: dict[str, Any], error: str) -> None:
    """B36: identity and numbers are checked, and never copied from the model."""
    assert mismatches(parse_draft(draft(**fields)), facts()) == [error]


def test_counts_that_rose_since_the_check_are_not_a_mismatch() -> None:
    result = parse_draft(
        draft(agent_id="bee", total_steps_checked=18, steps_since_last_accept=15, stall_minutes=4.1)
    )

    assert mismatches(result, facts(stall_minutes=4.3)) == []


def test_fingerprint_depends_on_every_part_and_its_boundaries() -> None:
    marks = {
        fingerprint(*parts)
        for parts in [
            ("a", "b", "c", LOOP),
            ("ab", "", "c", LOOP),
            ("a", "bc", "", LOOP),
            ("a", "b", "d", LOOP),
            ("a", "b", "c", STORM),
        ]
    }

    assert len(marks) == 5
    assert fingerprint("a", "b", "c", LOOP) in marks


def test_ticket_is_the_same_after_being_stored() -> None:
    one = ticket(notified_severity=Severity.HIGH, triage_decision="intervene", related_kinds=(STORM,))

    assert EscalationTicket.model_validate_json(one.model_dump_json()) == one


def test_stored_ticket_with_a_text_as_created_at_is_read() -> None:
    one = ticket()
    stored = one.model_dump(mode="json") | {"created_at": "1970-01-01T00:01:40.000+00:00"}

    read = EscalationTicket.model_validate_json(json.dumps(stored))

    assert read.created_at == one.first_seen


# -- the life of a ticket -------------------------------------------------------------------------


def test_report_counts_and_adds_new_kinds() -> None:
    again, change = lifecycle.report(ticket(), severity=Severity.LOW, kinds=[LOOP, STORM], now=160.0)

    assert change == "counted"
    assert (again.occurrences, again.last_seen, again.severity) == (2, 160.0, Severity.HIGH)
    assert (again.kind, again.related_kinds, again.active_kinds) == (LOOP, (STORM,), (LOOP, STORM))


@pytest.mark.parametrize(
    ("status", "notified"),
    [
        (TicketStatus.OPEN, None),
        (TicketStatus.INTERVENING, Severity.CRITICAL),
        (TicketStatus.ACKNOWLEDGED, Severity.CRITICAL),
    ],
)
def test_rise_is_a_rise_once(status: TicketStatus, notified: Severity | None) -> None:
    """B38: a rise in severity is one update; a fall is none."""
    risen, change = lifecycle.report(ticket(status), severity=Severity.CRITICAL, kinds=[LOOP], now=1.0)
    fallen, later = lifecycle.report(risen, severity=Severity.MEDIUM, kinds=[LOOP], now=2.0)

    assert (change, later) == ("rose", "counted")
    assert (risen.status, risen.severity, risen.notified_severity) == (status, Severity.CRITICAL, notified)
    assert fallen.severity is Severity.CRITICAL


@pytest.mark.parametrize("status", [TicketStatus.OPEN, TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED])
def test_relapse_within_the_hold_is_the_same_ticket_in_the_same_status(status: TicketStatus) -> None:
    """B39: a relapse within the hold continues the same ticket."""
    cleared = lifecycle.clear(ticket(status), now=200.0)
    back, change = lifecycle.report(cleared, severity=Severity.HIGH, kinds=[LOOP], now=250.0)

    assert lifecycle.hold_ends(cleared, 120.0) == 320.0
    assert (change, back.status, back.condition_cleared_at) == ("reopened", status, None)
    assert lifecycle.settle(back, now=9e9, hold=120.0) is back


def test_hold_starts_when_the_condition_first_clears() -> None:
    """B39: a condition that stays clear for the hold resolves the ticket."""
    cleared = lifecycle.clear(lifecycle.clear(ticket(), now=200.0), now=300.0)

    assert lifecycle.settle(cleared, now=319.9, hold=120.0) is cleared
    closed = lifecycle.settle(cleared, now=320.0, hold=120.0)
    assert (closed.status, closed.closed_at, closed.is_live) == (TicketStatus.RESOLVED, 320.0, False)


@pytest.mark.parametrize(
    ("severity", "cleared", "change", "status"),
    [
        (Severity.MEDIUM, False, "counted", TicketStatus.DISMISSED),
        (Severity.LOW, False, "counted", TicketStatus.DISMISSED),
        (Severity.MEDIUM, True, "counted", TicketStatus.DISMISSED),
        (Severity.HIGH, False, "rose", TicketStatus.OPEN),
        (Severity.HIGH, True, "rose", TicketStatus.OPEN),
    ],
)
def test_dismissed_ticket_reopens_only_when_worse(
    severity: Severity, cleared: bool, change: str, status: TicketStatus
) -> None:
    """B48: the same condition is not triaged again until it worsens."""
    dismissed = ticket(TicketStatus.DISMISSED, severity=Severity.MEDIUM)
    if cleared:
        dismissed = lifecycle.clear(dismissed, now=150.0)

    after, what = lifecycle.report(dismissed, severity=severity, kinds=[LOOP], now=200.0)

    assert (what, after.status, after.occurrences) == (change, status, 2)


def test_dismissed_recovery_reopens_on_relapse() -> None:
    recovered = lifecycle.clear(ticket(), now=150.0)
    dismissed = lifecycle.dismiss(recovered, reason="recovered", by="queen", now=160.0)

    after, change = lifecycle.report(dismissed, severity=Severity.HIGH, kinds=[LOOP], now=200.0)

    assert (after.status, change) == (TicketStatus.OPEN, "reopened")


@pytest.mark.parametrize("severity", [Severity.HIGH, Severity.CRITICAL])
def test_high_ticket_that_holds_cannot_be_dismissed(severity: Severity) -> None:
    """B52: a manipulated model cannot dismiss it."""
    with pytest.raises(
        TicketStatusError, match=r"is (high|critical) and still holds \(doom_loop\); intervene"
    ):
        lifecycle.dismiss(ticket(severity=severity), reason="all is well", by="queen", now=1.0)

    lifecycle.dismiss(ticket(severity=severity), reason="recovered", by="queen", now=1.0, has_recovered=True)


@pytest.mark.parametrize("status", [TicketStatus.OPEN, TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED])
def test_refused_dismissal_has_the_command_that_stops_the_worker(status: TicketStatus) -> None:
    with pytest.raises(TicketStatusError) as refused:
        lifecycle.dismiss(ticket(status), reason="a load test", by="ada", now=1.0)

    assert str(refused.value).endswith('; to stop the worker: queenright terminate bee --reason "..."')


def test_dismissed_ticket_stays_dismissed_when_it_closes() -> None:
    """B48: a dismissal stays."""
    dismissed = ticket(TicketStatus.DISMISSED)

    gone = lifecycle.worker_ended(dismissed, now=200.0)
    settled = lifecycle.settle(lifecycle.clear(dismissed, now=200.0), now=400.0, hold=120.0)

    assert (gone.status, gone.closed_at) == (TicketStatus.DISMISSED, 200.0)
    assert (settled.status, settled.closed_at) == (TicketStatus.DISMISSED, 400.0)


def test_intervening_notifies_the_current_severity_and_then_only_new_text() -> None:
    first = lifecycle.intervene(ticket(), analysis="a", urgency="high", by="queen", now=1.0)
    again = lifecycle.intervene(first, analysis="b", urgency="low", by="queen", now=2.0)

    assert (first.status, first.notified_severity) == (TicketStatus.INTERVENING, Severity.HIGH)
    assert (again.status, again.analysis, again.notified_severity) == (first.status, "b", Severity.HIGH)


def test_bypass_time_applies_only_before_triage_answers() -> None:
    """
    B46: high and critical tickets reach the operator as untriaged; a late verdict of the queen replaces that.
    """
    past = lifecycle.intervene(ticket(), analysis="a", urgency="high", by="rules", now=1.0, is_untriaged=True)
    late = lifecycle.intervene(past, analysis="b", urgency="high", by="queen", now=2.0)

    assert (past.untriaged, past.triage_decision) == (True, "bypass")
    assert (late.untriaged, late.triage_decision, late.analysis) == (False, "intervene", "b")
    with pytest.raises(TicketStatusError, match="triage has decided"):
        lifecycle.intervene(late, analysis="a", urgency="high", by="rules", now=3.0, is_untriaged=True)


@pytest.mark.parametrize(
    ("status", "verb", "remedy"),
    [
        (TicketStatus.DISMISSED, "intervene", "reopens by itself if it gets worse"),
        (TicketStatus.DISMISSED, "dismiss", "it is dismissed already"),
        (TicketStatus.DISMISSED, "acknowledge", "there is nothing to do"),
        (TicketStatus.INTERVENING, "dismiss", "people were notified; it closes by itself"),
        (TicketStatus.ACKNOWLEDGED, "dismiss", "ann acknowledged it; it closes by itself"),
        (TicketStatus.ACKNOWLEDGED, "acknowledge", "ann acknowledged it already"),
    ],
)
def test_status_error_says_what_to_do(status: TicketStatus, verb: str, remedy: str) -> None:
    one = ticket(status, severity=Severity.LOW, acknowledged_by="ann")
    with pytest.raises(TicketStatusError, match=f"cannot {verb}.* ticket t1, which is {status}: .*{remedy}"):
        _do(verb, one)


@pytest.mark.parametrize("verb", ["intervene", "dismiss", "acknowledge", "report", "clear", "worker_ended"])
def test_closed_ticket_never_changes(verb: str) -> None:
    """B49: a closed ticket is an error that states when it was closed."""
    closed = ticket(TicketStatus.RESOLVED, closed_at=0.0)

    with pytest.raises(TicketClosedError, match=r"t1 was closed \(resolved\) at 1970-01-01 00:00:00 UTC"):
        _do(verb, closed)
    assert lifecycle.settle(closed, now=9e9, hold=0.0) is closed


def test_acknowledged_ticket_takes_the_queens_text_and_stays_acknowledged() -> None:
    """B41: acknowledged stays acknowledged."""
    taken = lifecycle.acknowledge(ticket(TicketStatus.INTERVENING), by="ann", now=5.0)

    after = lifecycle.intervene(taken, analysis="b", urgency="high", by="queen", now=6.0)

    assert (taken.acknowledged_by, taken.acknowledged_at) == ("ann", 5.0)
    assert (after.status, after.analysis) == (TicketStatus.ACKNOWLEDGED, "b")


def _do(verb: str, one: EscalationTicket) -> None:
    match verb:
        case "intervene":
            lifecycle.intervene(one, analysis="a", urgency="high", by="queen", now=1.0)
        case "dismiss":
            lifecycle.dismiss(one, reason="r", by="queen", now=1.0)
        case "acknowledge":
            lifecycle.acknowledge(one, by="bob", now=1.0)
        case "report":
            lifecycle.report(one, severity=Severity.HIGH, kinds=[LOOP], now=1.0)
        case "clear":
            lifecycle.clear(one, now=1.0)
        case "worker_ended":
            lifecycle.worker_ended(one, now=1.0)
        case _:
            raise AssertionError(verb)
