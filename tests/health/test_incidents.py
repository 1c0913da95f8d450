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
from tests.health.test_ticket_service import make_finding, make_worker

ANTHROPIC = "provider:anthropic"


def list_incidents(tickets: Iterable[EscalationTicket], *, now: float = 10_000.0) -> list[Incident]:
    return incidents.incidents_of(tickets, now=now)


def make_ticket(n: int, opened_at: float, closed_at: float | None = None, **fields: Any) -> EscalationTicket:
    health = make_worker(make_finding(), agent=f"bee-{n}")
    texts = dict.fromkeys(("cause", "judge_reasoning", "suggested_action", "evidence_snippet"), "")
    new_ticket = rules.new_ticket(
        f"t{n}",
        rules.worker_facts(health, opened_at),
        make_finding(),
        [make_finding()],
        Severity.MEDIUM,
        texts,
        opened_at,
        storm_id=fields.pop("group", ANTHROPIC),
    )
    status = TicketStatus.OPEN if closed_at is None else TicketStatus.RESOLVED
    return new_ticket.model_copy(update={"closed_at": closed_at, "status": status} | fields)


def test_tickets_of_one_cause_that_are_open_together_are_one_incident() -> None:
    """B104."""
    [incident] = list_incidents(
        [
            make_ticket(2, 20),
            make_ticket(1, 10, 60),
            make_ticket(3, 30, severity=Severity.CRITICAL),
            make_ticket(4, 30, group=""),
        ]
    )

    assert (incident.incident_id, incident.cause, incident.severity) == ("t1", ANTHROPIC, Severity.CRITICAL)
    assert (incident.opened_at, incident.closed_at) == (10, None)
    assert (incident.workers, incident.open_tickets, incident.ticket_ids) == (3, 2, ("t1", "t2", "t3"))


def test_incident_closes_with_its_last_ticket_and_a_later_ticket_opens_another() -> None:
    """B104."""
    newer, older = list_incidents(
        [make_ticket(1, 10, 60), make_ticket(2, 20, 50), make_ticket(3, 100, 110), make_ticket(4, 105)]
    )

    assert (older.incident_id, older.closed_at, older.open_tickets) == ("t1", 60, 0)
    assert (newer.incident_id, newer.closed_at, newer.open_tickets) == ("t3", None, 1)


WORKER_GONE = {"status": TicketStatus.WORKER_GONE}


def test_incident_whose_sessions_end_stays_open_until_nothing_fails_for_the_window() -> None:
    """B104: the end of a run does not show that its provider works."""
    ended_tickets = [make_ticket(1, 10, 60, **WORKER_GONE), make_ticket(2, 20, 70, **WORKER_GONE)]

    for now, closed_at in ((71.0, None), (669.0, None), (670.0, 670.0)):
        assert [incident.closed_at for incident in list_incidents(ended_tickets, now=now)] == [closed_at]
    assert [incident.ticket_ids for incident in list_incidents([*ended_tickets, make_ticket(3, 300)])] == [
        ("t1", "t2", "t3")
    ]


def test_incident_whose_sessions_end_closes_when_calls_of_another_succeed() -> None:
    """B104."""
    tickets = [make_ticket(1, 10, 60, **WORKER_GONE), make_ticket(2, 20, 300, condition_cleared_at=180.0)]

    [incident] = list_incidents(tickets, now=301.0)

    assert incident.closed_at == 300


def test_storm_closes_with_its_sessions() -> None:
    ended_tickets = [make_ticket(n, 10, 60, group="018f", **WORKER_GONE) for n in (1, 2)]

    assert [incident.closed_at for incident in list_incidents(ended_tickets)] == [60]


def test_dismissed_ticket_does_not_keep_an_incident_open() -> None:
    dismissed_ticket = make_ticket(2, 20, status=TicketStatus.DISMISSED, updated_at=90.0)

    [incident] = list_incidents([make_ticket(1, 10, 60), dismissed_ticket])

    assert incident.closed_at == 90


def test_storm_is_an_incident_and_a_single_agent_is_not() -> None:
    tickets = [make_ticket(1, 10), make_ticket(2, 10, group="018f"), make_ticket(3, 12, group="018f")]

    assert [(incident.cause, incident.workers) for incident in list_incidents(tickets)] == [("storm", 2)]


def test_sessions_of_one_agent_are_an_incident_unless_they_are_its_failed_runs() -> None:
    """B104: six parallel sessions are an incident; consecutive failed runs are not."""
    runs = [
        make_ticket(n, 10, agent_id="bee", session_id=f"s{n}", kind=FindingKind.PROVIDER_FAILURE)
        for n in range(6)
    ]
    failed_runs = [ended_run.model_copy(update={"kind": FindingKind.RUNS_FAILED}) for ended_run in runs]

    assert [incident.workers for incident in list_incidents(runs)] == [6]
    assert list_incidents(failed_runs) == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 50), st.none() | st.integers(0, 50), st.sampled_from("ab")
        ),
        max_size=12,
    )
)
def test_no_ticket_is_in_two_incidents_and_each_is_within_its_times(
    intervals: list[tuple[int, int, int | None, str]],
) -> None:
    tickets = [
        make_ticket(
            n, opened_at, None if duration is None else opened_at + duration, group=f"provider:{group}"
        )
        for n, (_, opened_at, duration, group) in enumerate(intervals)
    ]

    listed_incidents = list_incidents(tickets)

    incident_ticket_ids = [ticket_id for incident in listed_incidents for ticket_id in incident.ticket_ids]
    assert len(incident_ticket_ids) == len(set(incident_ticket_ids))
    assert listed_incidents == list_incidents(reversed(tickets))
    for incident in listed_incidents:
        incident_tickets = [
            listed_ticket for listed_ticket in tickets if listed_ticket.ticket_id in incident.ticket_ids
        ]
        assert incident.opened_at == min(listed_ticket.first_seen for listed_ticket in incident_tickets)
        assert (incident.closed_at is None) is any(
            listed_ticket.is_open for listed_ticket in incident_tickets
        )
        assert {listed_ticket.storm_id for listed_ticket in incident_tickets} == {incident.cause}
