from __future__ import annotations

from typing import Any

from queenright.health.findings import FindingKind
from queenright.health.settings import HealthSettings
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.vitals.incarnation import end_session
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.server.notifications.ticket_notifications import (
    RECENT_SECONDS,
    SHORT_SECONDS,
    EarlierSessions,
    find_earlier_sessions,
)
from tests.alerting.parts import make_ticket as make_alert_ticket

SETTINGS = HealthSettings()
NOW = 10_000.0


def make_session(
    session: str, started_at: float, *, last_heartbeat: float | None = None, has_ended: bool = False
) -> VitalSigns:
    vitals = VitalSigns("bee", session, started_at, SETTINGS)
    vitals.last_heartbeat = last_heartbeat
    if has_ended:
        end_session(vitals, WorkerStatus.FAILED, started_at + 1)
    return vitals


def make_ticket(session: str, opened_at: float, **changes: Any) -> EscalationTicket:
    values = {"ticket_id": f"ticket-of-{session}", "session_id": session, "notified_at": opened_at}
    return make_alert_ticket(**values | changes)


def find_earlier(
    opened_at: float,
    tickets: list[EscalationTicket],
    *other_sessions: VitalSigns,
    duration: float = 0.0,
    **changes: Any,
) -> EarlierSessions:
    session = make_session("mine", opened_at)
    session.last_activity = opened_at + duration
    sessions = {item.session_id: item for item in (session, *other_sessions)}
    return find_earlier_sessions(make_ticket("mine", NOW, **changes), tickets, sessions, NOW)


def test_session_that_ended_or_whose_heartbeats_stopped_is_an_earlier_one() -> None:
    """B123: it is an earlier session. B122: a concurrent session, or one that may only be silent, is not."""
    for session, expected_tickets in {
        make_session("crashed", NOW - 90.0, last_heartbeat=NOW - 60.0): ("ticket-of-crashed",),
        make_session("failed", NOW - 90.0, has_ended=True): ("ticket-of-failed",),
        make_session("beats on", NOW - 90.0, last_heartbeat=NOW - 10.0): (),
        make_session("silent", NOW - 90.0): (),
    }.items():
        sessions = find_earlier(NOW - 30.0, [make_ticket(session.session_id, NOW - 40.0)], session)
        assert sessions.tickets == expected_tickets, session.session_id
    dismissed_ticket = make_ticket("dismissed", NOW - 40.0, notified_at=None)
    assert (
        find_earlier(NOW - 30.0, [dismissed_ticket], make_session("dismissed", NOW - 90.0, has_ended=True))
        == EarlierSessions()
    )


def test_condition_after_a_long_run_or_pause_is_notified_separately() -> None:
    """B122, B125: after healthy work it is a new condition, whoever acknowledged the old ticket."""
    dead_session = make_session("dead", NOW - 3000.0, last_heartbeat=NOW - 900.0)
    tickets = [make_ticket("dead", NOW - 800.0)]
    assert find_earlier(NOW - SHORT_SECONDS - 1.0, tickets, dead_session).tickets == ("ticket-of-dead",)
    sessions_after_work = find_earlier(
        NOW - SHORT_SECONDS - 1.0, tickets, dead_session, duration=SHORT_SECONDS + 1.0
    )
    assert sessions_after_work.tickets == ()
    assert find_earlier(NOW - 10.0, tickets, dead_session).tickets == ()


def test_third_abandoned_task_joins_the_unacknowledged_incident() -> None:
    """B122: a person resolves each task. B123: no person is paged for each of several within minutes."""
    earlier_sessions = [
        make_session(name, NOW - 60.0 * number, has_ended=True)
        for number, name in enumerate(("third", "second", "first"), 2)
    ]
    abandoned_fields: dict[str, Any] = {"kind": FindingKind.RECOVERY_FAILED}
    tickets = [
        make_ticket(session.session_id, NOW - 50.0, **abandoned_fields) for session in earlier_sessions
    ]
    assert find_earlier(NOW - 30.0, tickets[2:], *earlier_sessions, **abandoned_fields).tickets == ()
    assert find_earlier(NOW - 30.0, tickets[1:], *earlier_sessions, **abandoned_fields).tickets == (
        "ticket-of-second",
        "ticket-of-first",
    )
    for status in TicketStatus.ACKNOWLEDGED, TicketStatus.WORKER_GONE:
        by_ada = {"status": status, "acknowledged_by": "ada", **abandoned_fields}
        acknowledged_tickets = [
            make_ticket(session.session_id, NOW - 50.0, **by_ada) for session in earlier_sessions
        ]
        assert (
            find_earlier(NOW - 30.0, acknowledged_tickets, *earlier_sessions, **abandoned_fields).tickets
            == ()
        ), status


def test_incident_resolved_in_pagerduty_is_not_joined() -> None:
    """
    B41: the incident is closed there. Its tickets that another person acknowledged are not joined either.
    """
    earlier_sessions = [
        make_session(name, NOW - 60.0 * number, has_ended=True)
        for number, name in enumerate(("third", "second", "first"), 2)
    ]
    third_ticket, second_ticket, first_ticket = (
        make_ticket(session.session_id, NOW - 50.0) for session in earlier_sessions
    )
    second_ticket = second_ticket.model_copy(update={"incident_id": first_ticket.ticket_id})
    assert (
        find_earlier(NOW - 30.0, [third_ticket, second_ticket, first_ticket], *earlier_sessions).tickets[0]
        == third_ticket.ticket_id
    )
    resolved_ticket = second_ticket.model_copy(update={"incident_resolved_at": NOW - 40.0})
    sessions = find_earlier(NOW - 30.0, [third_ticket, resolved_ticket, first_ticket], *earlier_sessions)
    assert sessions == EarlierSessions((third_ticket.ticket_id,), is_recurring=True)


def test_third_session_of_a_silent_agent_within_an_hour_joins_the_incident() -> None:
    """B123: the agent never reports an end. B122: the second session is notified."""
    earlier_sessions = [make_session("second", NOW - 120.0), make_session("first", NOW - 240.0)]
    tickets = [make_ticket("second", NOW - 110.0), make_ticket("first", NOW - 230.0)]
    assert find_earlier(NOW - 60.0, tickets[1:], earlier_sessions[1]) == EarlierSessions(
        (), is_recurring=True
    )
    sessions = find_earlier(NOW - 60.0, tickets, *earlier_sessions)
    assert sessions == EarlierSessions(("ticket-of-second", "ticket-of-first"), is_recurring=True)
    # This is long ago, so it is a separate incident.
    tickets[1] = make_ticket("first", NOW - RECENT_SECONDS - 1.0)
    assert find_earlier(NOW - 60.0, tickets, *earlier_sessions).tickets == ()


def test_concurrent_sessions_are_never_earlier_ones() -> None:
    """B122: each concurrent session has a separate condition."""
    earlier_sessions = [make_session(f"s{number}", NOW - 100.0 - number) for number in range(5)]
    tickets = [make_ticket(session.session_id, NOW - 50.0) for session in earlier_sessions]
    assert find_earlier(NOW - 200.0, tickets, *earlier_sessions) == EarlierSessions()


def test_ticket_of_another_incarnation_of_the_session_is_an_earlier_one() -> None:
    gone_fields = {"status": TicketStatus.WORKER_GONE, "closed_at": NOW - 10.0}
    earlier_ticket = make_ticket("mine", NOW - 60.0, ticket_id="before", incarnation_id="zero", **gone_fields)
    relapse = make_ticket("mine", NOW - 60.0, ticket_id="relapse", incarnation_id="one", **gone_fields)
    assert find_earlier(NOW - 100.0, [earlier_ticket, relapse]) == EarlierSessions(
        ("before",), is_recurring=True
    )


def test_forgotten_session_counts_as_ended_when_its_ticket_closed() -> None:
    tickets = [
        make_ticket("early", NOW - 60.0, closed_at=NOW - 50.0),
        make_ticket("late", NOW - 60.0, closed_at=NOW - 30.0),
    ]
    assert find_earlier(NOW - 40.0, tickets).tickets == ("ticket-of-early",)
