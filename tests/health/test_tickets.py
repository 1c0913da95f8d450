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
VALID_DRAFT: dict[str, Any] = {
    "severity": "high",
    "cause": "calls search with the same arguments",
    "judge_reasoning": "17 bad steps, nothing new in any of them",
    "suggested_action": "look at the search tool",
    "evidence_snippet": "search: 0 results",
}


def make_draft(**fields: Any) -> str:
    return json.dumps({**VALID_DRAFT, **fields})


def make_facts(**fields: Any) -> WorkerFacts:
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


def make_ticket(status: TicketStatus = TicketStatus.OPEN, **fields: Any) -> EscalationTicket:
    return EscalationTicket.model_validate(
        {
            **dict(make_facts()),
            **VALID_DRAFT,
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
        make_draft(),
        f"\n  {make_draft()}\n",
        f"```json\n{make_draft()}\n```",
        f"```\n{make_draft()}\n```\n",
        make_draft(
            total_steps_checked=20, steps_since_last_accept=0, stall_minutes=None, recent_verdicts=["RETRY"]
        ),
        make_draft(stall_minutes=4, agent_id="bee", evidence_snippet=""),
    ],
)
def test_complete_draft_is_accepted_bare_or_fenced(text: str) -> None:
    """B35: fenced JSON is accepted."""
    assert parse_draft(text).severity is Severity.HIGH


@pytest.mark.parametrize("name", list(VALID_DRAFT))
def test_missing_field_is_named(name: str) -> None:
    """B35: a missing field is refused with an error that names it."""
    with pytest.raises(TicketRejectedError) as error_info:
        parse_draft(json.dumps({key: value for key, value in VALID_DRAFT.items() if key != name}))

    assert error_info.value.errors == (f"{name}: is required",)


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
    with pytest.raises(TicketRejectedError) as error_info:
        parse_draft(make_draft(**fields))

    assert len(error_info.value.errors) == 1
    assert error_info.value.errors[0].startswith(error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "is empty"),
        ("```json\n\n```", "is empty"),
        ("[]", "not a list"),
        (f"[{json.dumps(VALID_DRAFT)}]", "not a list"),
        ("null", "not null"),
        ('"high"', "not a string"),
        ("7", "not a number"),
        ("true", "not true or false"),
        ("the worker is stuck", "is not JSON (Expecting value, line 1 column 1)"),
        (f"Here you are:\n{json.dumps(VALID_DRAFT)}", "is not JSON"),
        (f"{json.dumps(VALID_DRAFT)}{json.dumps(VALID_DRAFT)}", "is not JSON (Extra data"),
        (json.dumps(VALID_DRAFT)[:-1], "is not JSON"),
        ('{"severity": "low", "severity": "high"}', "severity: appears twice"),
        ('{"stall_minutes": NaN}', "NaN is not a JSON value"),
        ("[" * 100_000, "at most 65536 characters"),
        ("[" * 60_000, "is not a JSON object"),
        ('{"total_steps_checked": ' + "9" * 5000 + "}", "is not a JSON object"),
    ],
)
def test_non_object_is_refused_with_the_reason(text: str, error: str) -> None:
    """B35: a list, invalid text or nothing is refused."""
    with pytest.raises(TicketRejectedError, match=r"^ticket refused: ") as error_info:
        parse_draft(text)

    assert error in str(error_info.value)


def test_all_errors_are_listed_without_secrets() -> None:
    with pytest.raises(TicketRejectedError) as error_info:
        parse_draft(make_draft(severity="sk-live0123456789abcdef", cause="", mood=1))

    assert sorted(error.split(":")[0] for error in error_info.value.errors) == ["cause", "mood", "severity"]
    assert "0123456789abcdef" not in str(error_info.value)


_anything = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
)


@given(
    st.text()
    | _anything.map(json.dumps)
    | st.fixed_dictionaries(dict.fromkeys(VALID_DRAFT, _anything)).map(json.dumps)
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
    assert mismatches(parse_draft(make_draft(**fields)), make_facts()) == [error]


def test_counts_that_rose_since_the_check_are_not_a_mismatch() -> None:
    draft = parse_draft(
        make_draft(agent_id="bee", total_steps_checked=18, steps_since_last_accept=15, stall_minutes=4.1)
    )

    assert mismatches(draft, make_facts(stall_minutes=4.3)) == []


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
    original = make_ticket(
        notified_severity=Severity.HIGH, triage_decision="intervene", related_kinds=(STORM,)
    )

    assert EscalationTicket.model_validate_json(original.model_dump_json()) == original


def test_stored_ticket_with_a_text_as_created_at_is_read() -> None:
    original = make_ticket()
    stored_fields = original.model_dump(mode="json") | {"created_at": "1970-01-01T00:01:40.000+00:00"}

    restored = EscalationTicket.model_validate_json(json.dumps(stored_fields))

    assert restored.created_at == original.first_seen


# -- the life of a ticket -------------------------------------------------------------------------


def test_report_counts_and_adds_new_kinds() -> None:
    reported_ticket, change = lifecycle.report(
        make_ticket(), severity=Severity.LOW, kinds=[LOOP, STORM], now=160.0
    )

    assert change == "counted"
    assert (reported_ticket.occurrences, reported_ticket.last_seen, reported_ticket.severity) == (
        2,
        160.0,
        Severity.HIGH,
    )
    assert (reported_ticket.kind, reported_ticket.related_kinds, reported_ticket.active_kinds) == (
        LOOP,
        (STORM,),
        (LOOP, STORM),
    )


@pytest.mark.parametrize(
    ("status", "notified_severity"),
    [
        (TicketStatus.OPEN, None),
        (TicketStatus.INTERVENING, Severity.CRITICAL),
        (TicketStatus.ACKNOWLEDGED, Severity.CRITICAL),
    ],
)
def test_severity_rise_is_reported_once(status: TicketStatus, notified_severity: Severity | None) -> None:
    """B38: a rise in severity is one update; a fall is none."""
    risen_ticket, change = lifecycle.report(
        make_ticket(status), severity=Severity.CRITICAL, kinds=[LOOP], now=1.0
    )
    fallen_ticket, second_change = lifecycle.report(
        risen_ticket, severity=Severity.MEDIUM, kinds=[LOOP], now=2.0
    )

    assert (change, second_change) == ("rose", "counted")
    assert (risen_ticket.status, risen_ticket.severity, risen_ticket.notified_severity) == (
        status,
        Severity.CRITICAL,
        notified_severity,
    )
    assert fallen_ticket.severity is Severity.CRITICAL


@pytest.mark.parametrize("status", [TicketStatus.OPEN, TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED])
def test_relapse_within_the_hold_is_the_same_ticket_in_the_same_status(status: TicketStatus) -> None:
    """B39: a relapse within the hold continues the same ticket."""
    cleared_ticket = lifecycle.clear(make_ticket(status), now=200.0)
    relapsed_ticket, change = lifecycle.report(
        cleared_ticket, severity=Severity.HIGH, kinds=[LOOP], now=250.0
    )

    assert lifecycle.hold_ends(cleared_ticket, 120.0) == 320.0
    assert (change, relapsed_ticket.status, relapsed_ticket.condition_cleared_at) == (
        "reopened",
        status,
        None,
    )
    assert lifecycle.settle(relapsed_ticket, now=9e9, hold=120.0) is relapsed_ticket


def test_hold_starts_when_the_condition_first_clears() -> None:
    """B39: a condition that stays clear for the hold resolves the ticket."""
    cleared_ticket = lifecycle.clear(lifecycle.clear(make_ticket(), now=200.0), now=300.0)

    assert lifecycle.settle(cleared_ticket, now=319.9, hold=120.0) is cleared_ticket
    closed_ticket = lifecycle.settle(cleared_ticket, now=320.0, hold=120.0)
    assert (closed_ticket.status, closed_ticket.closed_at, closed_ticket.is_live) == (
        TicketStatus.RESOLVED,
        320.0,
        False,
    )


@pytest.mark.parametrize(
    ("severity", "is_cleared", "change", "status"),
    [
        (Severity.MEDIUM, False, "counted", TicketStatus.DISMISSED),
        (Severity.LOW, False, "counted", TicketStatus.DISMISSED),
        (Severity.MEDIUM, True, "counted", TicketStatus.DISMISSED),
        (Severity.HIGH, False, "rose", TicketStatus.OPEN),
        (Severity.HIGH, True, "rose", TicketStatus.OPEN),
    ],
)
def test_dismissed_ticket_reopens_only_when_worse(
    severity: Severity, is_cleared: bool, change: str, status: TicketStatus
) -> None:
    """B48: the same condition is not triaged again until it worsens."""
    dismissed_ticket = make_ticket(TicketStatus.DISMISSED, severity=Severity.MEDIUM)
    if is_cleared:
        dismissed_ticket = lifecycle.clear(dismissed_ticket, now=150.0)

    reported_ticket, actual_change = lifecycle.report(
        dismissed_ticket, severity=severity, kinds=[LOOP], now=200.0
    )

    assert (actual_change, reported_ticket.status, reported_ticket.occurrences) == (change, status, 2)


def test_dismissed_recovery_reopens_on_relapse() -> None:
    recovered_ticket = lifecycle.clear(make_ticket(), now=150.0)
    dismissed_ticket = lifecycle.dismiss(recovered_ticket, reason="recovered", by="queen", now=160.0)

    reported_ticket, change = lifecycle.report(
        dismissed_ticket, severity=Severity.HIGH, kinds=[LOOP], now=200.0
    )

    assert (reported_ticket.status, change) == (TicketStatus.OPEN, "reopened")


@pytest.mark.parametrize("severity", [Severity.HIGH, Severity.CRITICAL])
def test_high_ticket_that_holds_cannot_be_dismissed(severity: Severity) -> None:
    """B52: a manipulated model cannot dismiss the ticket."""
    with pytest.raises(
        TicketStatusError, match=r"is (high|critical) and still holds \(doom_loop\); intervene"
    ):
        lifecycle.dismiss(make_ticket(severity=severity), reason="all is well", by="queen", now=1.0)

    lifecycle.dismiss(
        make_ticket(severity=severity), reason="recovered", by="queen", now=1.0, has_recovered=True
    )


@pytest.mark.parametrize("status", [TicketStatus.OPEN, TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED])
def test_refused_dismissal_has_the_command_that_stops_the_worker(status: TicketStatus) -> None:
    with pytest.raises(TicketStatusError) as error_info:
        lifecycle.dismiss(make_ticket(status), reason="a load test", by="ada", now=1.0)

    assert str(error_info.value).endswith('; to stop the worker: queenright terminate bee --reason "..."')


def test_dismissed_ticket_stays_dismissed_when_it_closes() -> None:
    """B48: a dismissal is permanent."""
    dismissed_ticket = make_ticket(TicketStatus.DISMISSED)

    ended_ticket = lifecycle.worker_ended(dismissed_ticket, now=200.0)
    settled_ticket = lifecycle.settle(lifecycle.clear(dismissed_ticket, now=200.0), now=400.0, hold=120.0)

    assert (ended_ticket.status, ended_ticket.closed_at) == (TicketStatus.DISMISSED, 200.0)
    assert (settled_ticket.status, settled_ticket.closed_at) == (TicketStatus.DISMISSED, 400.0)


def test_intervening_notifies_the_current_severity_and_then_only_new_text() -> None:
    first = lifecycle.intervene(make_ticket(), analysis="a", urgency="high", by="queen", now=1.0)
    second = lifecycle.intervene(first, analysis="b", urgency="low", by="queen", now=2.0)

    assert (first.status, first.notified_severity) == (TicketStatus.INTERVENING, Severity.HIGH)
    assert (second.status, second.analysis, second.notified_severity) == (first.status, "b", Severity.HIGH)


def test_bypass_time_applies_only_before_triage_answers() -> None:
    """
    B46: high and critical tickets reach the operator as untriaged; a late verdict of the queen replaces that.
    """
    bypassed_ticket = lifecycle.intervene(
        make_ticket(), analysis="a", urgency="high", by="rules", now=1.0, is_untriaged=True
    )
    triaged_ticket = lifecycle.intervene(bypassed_ticket, analysis="b", urgency="high", by="queen", now=2.0)

    assert (bypassed_ticket.untriaged, bypassed_ticket.triage_decision) == (True, "bypass")
    assert (triaged_ticket.untriaged, triaged_ticket.triage_decision, triaged_ticket.analysis) == (
        False,
        "intervene",
        "b",
    )
    with pytest.raises(TicketStatusError, match="triage has decided"):
        lifecycle.intervene(
            triaged_ticket, analysis="a", urgency="high", by="rules", now=3.0, is_untriaged=True
        )


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
    original = make_ticket(status, severity=Severity.LOW, acknowledged_by="ann")
    with pytest.raises(TicketStatusError, match=f"cannot {verb}.* ticket t1, which is {status}: .*{remedy}"):
        _apply(verb, original)


@pytest.mark.parametrize("verb", ["intervene", "dismiss", "acknowledge", "report", "clear", "worker_ended"])
def test_closed_ticket_never_changes(verb: str) -> None:
    """B49: a closed ticket is an error that states when it was closed."""
    closed_ticket = make_ticket(TicketStatus.RESOLVED, closed_at=0.0)

    with pytest.raises(TicketClosedError, match=r"t1 was closed \(resolved\) at 1970-01-01 00:00:00 UTC"):
        _apply(verb, closed_ticket)
    assert lifecycle.settle(closed_ticket, now=9e9, hold=0.0) is closed_ticket


def test_acknowledged_ticket_takes_the_queens_text_and_stays_acknowledged() -> None:
    """B41: the ticket stays acknowledged."""
    acknowledged_ticket = lifecycle.acknowledge(make_ticket(TicketStatus.INTERVENING), by="ann", now=5.0)

    triaged_ticket = lifecycle.intervene(
        acknowledged_ticket, analysis="b", urgency="high", by="queen", now=6.0
    )

    assert (acknowledged_ticket.acknowledged_by, acknowledged_ticket.acknowledged_at) == ("ann", 5.0)
    assert (triaged_ticket.status, triaged_ticket.analysis) == (TicketStatus.ACKNOWLEDGED, "b")


def _apply(verb: str, original: EscalationTicket) -> None:
    match verb:
        case "intervene":
            lifecycle.intervene(original, analysis="a", urgency="high", by="queen", now=1.0)
        case "dismiss":
            lifecycle.dismiss(original, reason="r", by="queen", now=1.0)
        case "acknowledge":
            lifecycle.acknowledge(original, by="bob", now=1.0)
        case "report":
            lifecycle.report(original, severity=Severity.HIGH, kinds=[LOOP], now=1.0)
        case "clear":
            lifecycle.clear(original, now=1.0)
        case "worker_ended":
            lifecycle.worker_ended(original, now=1.0)
        case _:
            raise AssertionError(verb)
