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
from tests.alerting.parts import ticket

SETTINGS = HealthSettings()
NOW = 10_000.0


def session_record(
    session: str, began: float, *, beat: float | None = None, ended: bool = False
) -> VitalSigns:
    vitals = VitalSigns("bee", session, began, SETTINGS)
    vitals.last_heartbeat = beat
    if ended:
        end_session(vitals, WorkerStatus.FAILED, began + 1)
    return vitals


def ticket_at(session: str, at: float, **changes: Any) -> EscalationTicket:
    values = {"ticket_id": f"ticket-of-{session}", "session_id": session, "notified_at": at}
    return ticket(**values | changes)


def find_earlier(
    ticket: float, tickets: list[EscalationTicket], *lives: VitalSigns, lasted: float = 0.0, **changes: Any
) -> EarlierSessions:
    session = session_record("mine", ticket)
    session.last_activity = ticket + lasted
    sessions = {session_id.session_id: session_id for session_id in (session, *lives)}
    return find_earlier_sessions(ticket_at("mine", NOW, **changes), tickets, sessions, NOW)


def test_session_that_ended_or_whose_heartbeats_stopped_is_joined() -> None:
    """B123: it is an earlier session. B122: a concurrent one, or one that may be silent, is not."""
    for session, expected in {
        session_record("crashed", NOW - 90.0, beat=NOW - 60.0): ("ticket-of-crashed",),
        session_record("failed", NOW - 90.0, ended=True): ("ticket-of-failed",),
        session_record("beats on", NOW - 90.0, beat=NOW - 10.0): (),
        session_record("silent", NOW - 90.0): (),
    }.items():
        sessions = find_earlier(NOW - 30.0, [ticket_at(session.session_id, NOW - 40.0)], session)
        assert sessions.tickets == expected, session.session_id
    silent = ticket_at("dismissed", NOW - 40.0, notified_at=None)
    assert (
        find_earlier(NOW - 30.0, [silent], session_record("dismissed", NOW - 90.0, ended=True))
        == EarlierSessions()
    )


def test_condition_after_a_long_run_or_pause_is_notified_separately() -> None:
    """
    B122, B125: after healthy work in between it is a new condition, whoever acknowledged the old ticket.
    """
    dead = session_record("dead", NOW - 3000.0, beat=NOW - 900.0)
    tickets = [ticket_at("dead", NOW - 800.0)]
    assert find_earlier(NOW - SHORT_SECONDS - 1.0, tickets, dead).tickets == ("ticket-of-dead",)
    worked_well = find_earlier(NOW - SHORT_SECONDS - 1.0, tickets, dead, lasted=SHORT_SECONDS + 1.0)
    assert worked_well.tickets == ()
    assert find_earlier(NOW - 10.0, tickets, dead).tickets == ()


def test_abandoned_work_joins_the_unacknowledged_incident_the_third_time() -> None:
    """B122: a person settles each run. B123: a person is not paged for each within minutes."""
    lives = [
        session_record(name, NOW - 60.0 * n, ended=True)
        for n, name in enumerate(("third", "second", "first"), 2)
    ]
    abandoned: dict[str, Any] = {"kind": FindingKind.RECOVERY_FAILED}
    tickets = [ticket_at(one.session_id, NOW - 50.0, **abandoned) for one in lives]
    assert find_earlier(NOW - 30.0, tickets[2:], *lives, **abandoned).tickets == ()
    assert find_earlier(NOW - 30.0, tickets[1:], *lives, **abandoned).tickets == (
        "ticket-of-second",
        "ticket-of-first",
    )
    for status in TicketStatus.ACKNOWLEDGED, TicketStatus.WORKER_GONE:
        by_ada = {"status": status, "acknowledged_by": "ada", **abandoned}
        acknowledged = [ticket_at(one.session_id, NOW - 50.0, **by_ada) for one in lives]
        assert find_earlier(NOW - 30.0, acknowledged, *lives, **abandoned).tickets == (), status


def test_incident_resolved_in_pagerduty_is_not_joined() -> None:
    """
    B41: the incident is closed there; its tickets that another person acknowledged are not joined either.
    """
    lives = [
        session_record(name, NOW - 60.0 * n, ended=True)
        for n, name in enumerate(("third", "second", "first"), 2)
    ]
    third, second, first = (ticket_at(one.session_id, NOW - 50.0) for one in lives)
    second = second.model_copy(update={"incident_id": first.ticket_id})
    assert find_earlier(NOW - 30.0, [third, second, first], *lives).tickets[0] == third.ticket_id
    resolved = second.model_copy(update={"incident_resolved_at": NOW - 40.0})
    sessions = find_earlier(NOW - 30.0, [third, resolved, first], *lives)
    assert sessions == EarlierSessions((third.ticket_id,), is_recurring=True)


def test_third_session_of_a_silent_agent_within_an_hour_joins() -> None:
    """B123: the agent never reports an end. B122: the second session is notified."""
    lives = [session_record("second", NOW - 120.0), session_record("first", NOW - 240.0)]
    tickets = [ticket_at("second", NOW - 110.0), ticket_at("first", NOW - 230.0)]
    assert find_earlier(NOW - 60.0, tickets[1:], lives[1]) == EarlierSessions((), is_recurring=True)
    sessions = find_earlier(NOW - 60.0, tickets, *lives)
    assert sessions == EarlierSessions(("ticket-of-second", "ticket-of-first"), is_recurring=True)
    # long ago: a separate incident
    tickets[1] = ticket_at("first", NOW - RECENT_SECONDS - 1.0)
    assert find_earlier(NOW - 60.0, tickets, *lives).tickets == ()


def test_concurrent_sessions_are_never_earlier_ones() -> None:
    """B122: each has its own condition."""
    lives = [session_record(f"s{n}", NOW - 100.0 - n) for n in range(5)]
    tickets = [ticket_at(one.session_id, NOW - 50.0) for one in lives]
    assert find_earlier(NOW - 200.0, tickets, *lives) == EarlierSessions()


def test_ticket_of_the_same_session_in_another_process_is_an_earlier_incarnation() -> None:
    gone = {"status": TicketStatus.WORKER_GONE, "closed_at": NOW - 10.0}
    before = ticket_at("mine", NOW - 60.0, ticket_id="before", incarnation_id="zero", **gone)
    relapse = ticket_at("mine", NOW - 60.0, ticket_id="relapse", incarnation_id="one", **gone)
    assert find_earlier(NOW - 100.0, [before, relapse]) == EarlierSessions(("before",), is_recurring=True)


def test_forgotten_session_ended_when_its_ticket_closed() -> None:
    tickets = [
        ticket_at("early", NOW - 60.0, closed_at=NOW - 50.0),
        ticket_at("late", NOW - 60.0, closed_at=NOW - 30.0),
    ]
    assert find_earlier(NOW - 40.0, tickets).tickets == ("ticket-of-early",)
