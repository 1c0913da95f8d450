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


def ticket_of(session: str, at: float, **changes: Any) -> EscalationTicket:
    values = {"ticket_id": f"ticket-of-{session}", "session_id": session, "notified_at": at}
    return ticket(**values | changes)


def find(
    mine: float, tickets: list[EscalationTicket], *lives: VitalSigns, lasted: float = 0.0, **changes: Any
) -> EarlierSessions:
    own = session_record("mine", mine)
    own.last_activity = mine + lasted
    sessions = {one.session_id: one for one in (own, *lives)}
    return find_earlier_sessions(ticket_of("mine", NOW, **changes), tickets, sessions, NOW)


def test_session_that_ended_or_whose_heartbeats_stopped_is_joined() -> None:
    """B123; and B122: one that runs at the same time, or may be silent, is not."""
    for session, expected in {
        session_record("crashed", NOW - 90.0, beat=NOW - 60.0): ("ticket-of-crashed",),
        session_record("failed", NOW - 90.0, ended=True): ("ticket-of-failed",),
        session_record("beats on", NOW - 90.0, beat=NOW - 10.0): (),
        session_record("silent", NOW - 90.0): (),
    }.items():
        sessions = find(NOW - 30.0, [ticket_of(session.session_id, NOW - 40.0)], session)
        assert sessions.tickets == expected, session.session_id
    unheard = ticket_of("dismissed", NOW - 40.0, notified_at=None)
    assert (
        find(NOW - 30.0, [unheard], session_record("dismissed", NOW - 90.0, ended=True)) == EarlierSessions()
    )


def test_condition_after_a_long_run_or_pause_is_notified_separately() -> None:
    """
    B122, B125: an agent that worked well in between has a new condition, whoever acknowledged the old one.
    """
    dead = session_record("dead", NOW - 3000.0, beat=NOW - 900.0)
    tickets = [ticket_of("dead", NOW - 800.0)]
    assert find(NOW - SHORT_SECONDS - 1.0, tickets, dead).tickets == ("ticket-of-dead",)
    worked = find(NOW - SHORT_SECONDS - 1.0, tickets, dead, lasted=SHORT_SECONDS + 1.0)
    assert worked.tickets == ()
    assert find(NOW - 10.0, tickets, dead).tickets == ()


def test_abandoned_work_joins_the_unacknowledged_incident_the_third_time() -> None:
    """B122: a person settles it, run by run; B123: and is not paged for it every minute."""
    lives = [
        session_record(name, NOW - 60.0 * n, ended=True)
        for n, name in enumerate(("third", "second", "first"), 2)
    ]
    given_up: dict[str, Any] = {"kind": FindingKind.RECOVERY_FAILED}
    tickets = [ticket_of(one.session_id, NOW - 50.0, **given_up) for one in lives]
    assert find(NOW - 30.0, tickets[2:], *lives, **given_up).tickets == ()
    assert find(NOW - 30.0, tickets[1:], *lives, **given_up).tickets == (
        "ticket-of-second",
        "ticket-of-first",
    )
    for status in TicketStatus.ACKNOWLEDGED, TicketStatus.WORKER_GONE:
        by_ada = {"status": status, "acknowledged_by": "ada", **given_up}
        taken = [ticket_of(one.session_id, NOW - 50.0, **by_ada) for one in lives]
        assert find(NOW - 30.0, taken, *lives, **given_up).tickets == (), status


def test_incident_that_a_person_resolved_in_pagerduty_is_joined_by_nothing() -> None:
    """B41: it is closed there; tickets of it that another person acknowledged are not joined either."""
    lives = [
        session_record(name, NOW - 60.0 * n, ended=True)
        for n, name in enumerate(("third", "second", "first"), 2)
    ]
    third, second, first = (ticket_of(one.session_id, NOW - 50.0) for one in lives)
    second = second.model_copy(update={"incident_id": first.ticket_id})
    assert find(NOW - 30.0, [third, second, first], *lives).tickets[0] == third.ticket_id
    resolved = second.model_copy(update={"incident_resolved_at": NOW - 40.0})
    sessions = find(NOW - 30.0, [third, resolved, first], *lives)
    assert sessions == EarlierSessions((third.ticket_id,), is_recurring=True)


def test_third_life_of_a_silent_agent_within_the_hour_is_joined() -> None:
    """B123: it never says that it ended. B122: the second life reaches people."""
    lives = [session_record("second", NOW - 120.0), session_record("first", NOW - 240.0)]
    tickets = [ticket_of("second", NOW - 110.0), ticket_of("first", NOW - 230.0)]
    assert find(NOW - 60.0, tickets[1:], lives[1]) == EarlierSessions((), is_recurring=True)
    sessions = find(NOW - 60.0, tickets, *lives)
    assert sessions == EarlierSessions(("ticket-of-second", "ticket-of-first"), is_recurring=True)
    # Long ago is another incident.
    tickets[1] = ticket_of("first", NOW - RECENT_SECONDS - 1.0)
    assert find(NOW - 60.0, tickets, *lives).tickets == ()


def test_concurrent_sessions_are_never_earlier_ones() -> None:
    """B122."""
    lives = [session_record(f"s{n}", NOW - 100.0 - n) for n in range(5)]
    tickets = [ticket_of(one.session_id, NOW - 50.0) for one in lives]
    assert find(NOW - 200.0, tickets, *lives) == EarlierSessions()


def test_ticket_of_the_same_session_in_another_process_is_an_earlier_incarnation() -> None:
    gone = {"status": TicketStatus.WORKER_GONE, "closed_at": NOW - 10.0}
    before = ticket_of("mine", NOW - 60.0, ticket_id="before", incarnation_id="zero", **gone)
    relapse = ticket_of("mine", NOW - 60.0, ticket_id="relapse", incarnation_id="one", **gone)
    assert find(NOW - 100.0, [before, relapse]) == EarlierSessions(("before",), is_recurring=True)


def test_forgotten_session_was_over_when_its_ticket_closed() -> None:
    tickets = [
        ticket_of("early", NOW - 60.0, closed_at=NOW - 50.0),
        ticket_of("late", NOW - 60.0, closed_at=NOW - 30.0),
    ]
    assert find(NOW - 40.0, tickets).tickets == ("ticket-of-early",)
