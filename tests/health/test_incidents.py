"""Incidents: tickets that share a cause and were open together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets import incidents
from queenright.health.tickets import ticket_rules as rules
from queenright.health.tickets.incidents import Incident
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from tests.health.test_ticket_service import finding, worker

ANTHROPIC = "provider:anthropic"


def incidents_of(tickets: Iterable[EscalationTicket], *, now: float = 10_000.0) -> list[Incident]:
    return incidents.incidents_of(tickets, now=now)


def ticket(n: int, opened: float, closed: float | None = None, **more: Any) -> EscalationTicket:
    health = worker(finding(), agent=f"bee-{n}")
    texts = dict.fromkeys(("cause", "judge_reasoning", "suggested_action", "evidence_snippet"), "")
    made = rules.new_ticket(
        f"t{n}",
        rules.worker_facts(health, opened),
        finding(),
        [finding()],
        Severity.MEDIUM,
        texts,
        opened,
        storm_id=more.pop("group", ANTHROPIC),
    )
    status = TicketStatus.OPEN if closed is None else TicketStatus.RESOLVED
    return made.model_copy(update={"closed_at": closed, "status": status} | more)


def test_tickets_of_one_cause_that_are_open_together_are_one_incident() -> None:
    """B104"""
    [incident] = incidents_of(
        [ticket(2, 20), ticket(1, 10, 60), ticket(3, 30, severity=Severity.CRITICAL), ticket(4, 30, group="")]
    )

    assert (incident.incident_id, incident.cause, incident.severity) == ("t1", ANTHROPIC, Severity.CRITICAL)
    assert (incident.opened_at, incident.closed_at) == (10, None)
    assert (incident.workers, incident.open_tickets, incident.ticket_ids) == (3, 2, ("t1", "t2", "t3"))


def test_incident_closes_with_its_last_ticket_and_a_later_ticket_opens_another() -> None:
    """B104"""
    newer, older = incidents_of([ticket(1, 10, 60), ticket(2, 20, 50), ticket(3, 100, 110), ticket(4, 105)])

    assert (older.incident_id, older.closed_at, older.open_tickets) == ("t1", 60, 0)
    assert (newer.incident_id, newer.closed_at, newer.open_tickets) == ("t3", None, 1)


GONE = {"status": TicketStatus.WORKER_GONE}


def test_incident_whose_sessions_end_stays_open_until_nothing_fails_for_the_window() -> None:
    """B104: the end of a run does not show that its provider works."""
    ended = [ticket(1, 10, 60, **GONE), ticket(2, 20, 70, **GONE)]

    for now, closed_at in ((71.0, None), (669.0, None), (670.0, 670.0)):
        assert [incident.closed_at for incident in incidents_of(ended, now=now)] == [closed_at]
    assert [incident.ticket_ids for incident in incidents_of([*ended, ticket(3, 300)])] == [
        ("t1", "t2", "t3")
    ]


def test_incident_whose_sessions_end_closes_when_calls_of_another_succeed() -> None:
    """B104"""
    tickets = [ticket(1, 10, 60, **GONE), ticket(2, 20, 300, condition_cleared_at=180.0)]

    [incident] = incidents_of(tickets, now=301.0)

    assert incident.closed_at == 300


def test_storm_closes_with_its_sessions() -> None:
    ended = [ticket(n, 10, 60, group="018f", **GONE) for n in (1, 2)]

    assert [incident.closed_at for incident in incidents_of(ended)] == [60]


def test_dismissed_ticket_does_not_keep_an_incident_open() -> None:
    dismissed = ticket(2, 20, status=TicketStatus.DISMISSED, updated_at=90.0)

    [incident] = incidents_of([ticket(1, 10, 60), dismissed])

    assert incident.closed_at == 90


def test_single_agent_is_not_an_incident_but_a_storm_is() -> None:
    tickets = [ticket(1, 10), ticket(2, 10, group="018f"), ticket(3, 12, group="018f")]

    assert [(incident.cause, incident.workers) for incident in incidents_of(tickets)] == [("storm", 2)]


def test_sessions_of_one_agent_are_an_incident_unless_they_are_its_failed_runs() -> None:
    """B104: six parallel sessions are an incident; consecutive failed runs are not."""
    runs = [
        ticket(n, 10, agent_id="bee", session_id=f"s{n}", kind=FindingKind.PROVIDER_FAILURE) for n in range(6)
    ]
    failed = [run.model_copy(update={"kind": FindingKind.RUNS_FAILED}) for run in runs]

    assert [incident.workers for incident in incidents_of(runs)] == [6]
    assert incidents_of(failed) == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 50), st.none() | st.integers(0, 50), st.sampled_from("ab")
        ),
        max_size=12,
    )
)
def test_no_ticket_is_in_two_incidents_and_each_is_within_its_times(
    drawn: list[tuple[int, int, int | None, str]],
) -> None:
    tickets = [
        ticket(n, opened, None if lasted is None else opened + lasted, group=f"provider:{group}")
        for n, (_, opened, lasted, group) in enumerate(drawn)
    ]

    found = incidents_of(tickets)

    inside = [ticket_id for incident in found for ticket_id in incident.ticket_ids]
    assert len(inside) == len(set(inside))
    assert found == incidents_of(reversed(tickets))
    for incident in found:
        of = [t for t in tickets if t.ticket_id in incident.ticket_ids]
        assert incident.opened_at == min(t.first_seen for t in of)
        assert (incident.closed_at is None) is any(t.is_open for t in of)
        assert {t.storm_id for t in of} == {incident.cause}
