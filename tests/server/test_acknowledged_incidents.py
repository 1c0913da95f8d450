"""
Incidents that are acknowledged in PagerDuty or through their newest ticket, until the acknowledgement is
withdrawn.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime

from pydantic import SecretStr

from queenright.alerting.callbacks.alertmanager import dedup_key
from queenright.alerting.notification import Notification
from queenright.alerting.notification_table import read_active
from queenright.health.findings import FindingKind
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.service import Service
from queenright.server.webhooks.callbacks import Callbacks
from tests.server import test_crash_loop as crash_loop
from tests.server.test_crash_loop import MINUTE, Clock, list_alerts, report_crash, start_looping_session
from tests.waiting import until

SECRET = "pagerduty-webhook"

settings, consecutive_failures = crash_loop.settings, crash_loop.consecutive_failures
clock, service = crash_loop.clock, crash_loop.service


async def list_firing_alerts(service: Service) -> list[Notification]:
    """
    Return the alerts that fire in Alertmanager: for each, the notification that stands for all its tickets.
    """
    firing: dict[str, Notification] = {}
    for notification in await service.store.read(read_active):
        if notification.is_firing(service.clock()):
            firing.setdefault(notification.key, notification)
    return list(firing.values())


async def post_notification_webhook(service: Service) -> set[str]:
    """
    Post Alertmanager's webhook about a PagerDuty notification of each firing alert; return the group keys.
    """
    groups = set()
    for notification in await list_firing_alerts(service):
        alert = {
            "status": "firing",
            "labels": notification.labels,
            "annotations": notification.annotations,
            "startsAt": "x",
        }
        group = f"group of {notification.labels['ticket_id']}"
        body = {"version": "4", "groupKey": group, "receiver": "pagerduty", "alerts": [alert]}
        await service.callbacks.record_notification(json.dumps(body).encode())
        groups.add(group)
    return groups


async def post_pagerduty_event(service: Service, kind: str, groups: set[str]) -> None:
    """Acknowledge or resolve incidents in PagerDuty, as ada."""
    callbacks = Callbacks(
        service.store,
        service.tickets,
        slack=None,
        pagerduty=(SecretStr(SECRET),),
        clock=service.clock,
        publish=service.bus.publish,
    )
    for group in groups:
        event = {
            "id": f"{kind}-{dedup_key(group)}"[:40],
            "event_type": f"incident.{kind}",
            "resource_type": "incident",
            "occurred_at": datetime.fromtimestamp(service.clock(), UTC).isoformat(),
            "agent": {"id": "PLH1HKV", "summary": "ada", "type": "user_reference"},
            "data": {"id": "PGR0VU2", "type": "incident", "incident_key": dedup_key(group)},
        }
        body = json.dumps({"event": event}).encode()
        digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        await callbacks.handle_pagerduty_event(body, signatures=f"v1={digest}")


async def advance_minutes(service: Service, clock: Clock, minutes: int) -> None:
    for _ in range(minutes):
        clock.now += MINUTE
        await service.tickets.settle(clock.now)


def list_acknowledged_tickets(service: Service) -> set[str]:
    return {ticket.acknowledged_by for ticket in service.tickets.open_tickets()}


async def test_pagerduty_acknowledgement_covers_all_tickets_of_the_incident(
    service: Service, clock: Clock
) -> None:
    """B41, B123: this includes tickets that joined after a reminder. None of them has reminders."""
    for number in range(16):
        await start_looping_session(service, clock, number)
        groups = await post_notification_webhook(service)
        await advance_minutes(service, clock, 4)
    assert [turn for turn, _ in await list_alerts(service)] == ["", "", "1", "1"]
    # Alertmanager has not sent the reminder yet.
    await post_pagerduty_event(service, "acknowledged", groups)
    assert list_acknowledged_tickets(service) == {"ada"}

    await start_looping_session(service, clock, 99)
    assert list_acknowledged_tickets(service) == {"ada"}
    earlier_alerts = await list_alerts(service)
    await advance_minutes(service, clock, 62)
    assert await list_alerts(service) == earlier_alerts


async def test_tickets_that_joined_before_the_first_notification_are_acknowledged(
    service: Service, clock: Clock
) -> None:
    """B41, B123: Alertmanager was unavailable, and then gets one alert for all tickets."""
    for number in range(5):
        await start_looping_session(service, clock, number)
        clock.now += MINUTE
    await post_pagerduty_event(service, "acknowledged", await post_notification_webhook(service))

    assert list_acknowledged_tickets(service) == {"ada"}
    earlier_alerts = await list_alerts(service)
    await advance_minutes(service, clock, 70)
    assert await list_alerts(service) == earlier_alerts


async def test_crash_loop_that_continues_after_its_incident_was_resolved_pages(
    service: Service, clock: Clock
) -> None:
    """B41, B123: the PagerDuty incident is closed. The next session is a separate incident with reminders."""
    for number in (1, 2):
        ticket = await start_looping_session(service, clock, number)
        await advance_minutes(service, clock, 1)
        groups = await post_notification_webhook(service)
        if number == 1:
            await report_crash(service, clock, number)
    await post_pagerduty_event(service, "resolved", groups)
    earlier_alerts = await list_alerts(service)
    await report_crash(service, clock, 2)

    third_ticket = None
    for number in range(3, 17):
        ticket = await start_looping_session(service, clock, number)
        third_ticket = third_ticket or ticket
        assert (ticket.status, ticket.acknowledged_by) == (TicketStatus.INTERVENING, "")
        assert ticket.incident_id == ("" if ticket is third_ticket else third_ticket.ticket_id)
        await advance_minutes(service, clock, 4)
        await report_crash(service, clock, number)
        clock.now += MINUTE
    assert [turn for turn, _ in (await list_alerts(service))[len(earlier_alerts) :]] == ["", "1"]


async def act_between_incarnations(service: Service, clock: Clock, kind: str) -> EscalationTicket:
    """Acknowledge or resolve an incident as ada while no incarnation runs; return the last ticket."""
    for number in (1, 2):
        ticket = await start_looping_session(service, clock, number)
        await advance_minutes(service, clock, 1)
        groups = await post_notification_webhook(service)
        await report_crash(service, clock, number)
        clock.now += MINUTE / 2
    assert (await reload_ticket(service, ticket)).closed_at is not None
    await post_pagerduty_event(service, kind, groups)
    return ticket


async def test_incident_resolved_in_pagerduty_between_two_incarnations_is_not_joined(
    service: Service, clock: Clock
) -> None:
    """B41, B123: the alert that was held open for the next session ends, and the next session pages."""
    second_ticket = await act_between_incarnations(service, clock, "resolved")
    assert await list_firing_alerts(service) == []
    alerts_before = await list_alerts(service)

    third_ticket = await start_looping_session(service, clock, 3)
    assert (third_ticket.status, third_ticket.acknowledged_by, third_ticket.incident_id) == (
        TicketStatus.INTERVENING,
        "",
        "",
    )
    assert third_ticket.incident != second_ticket.incident
    assert [turn for turn, _ in (await list_alerts(service))[len(alerts_before) :]] == [""]


async def test_incident_acknowledged_in_pagerduty_between_two_incarnations_stays_acknowledged(
    service: Service, clock: Clock
) -> None:
    """B41, B123: the next session's ticket is acknowledged by the same person and has no reminders."""
    second_ticket = await act_between_incarnations(service, clock, "acknowledged")
    alerts_before = await list_alerts(service)

    third_ticket = await start_looping_session(service, clock, 3)
    assert (third_ticket.status, third_ticket.acknowledged_by) == (TicketStatus.ACKNOWLEDGED, "ada")
    assert third_ticket.incident == second_ticket.incident
    await advance_minutes(service, clock, 62)
    assert await list_alerts(service) == alerts_before


async def test_pagerduty_resolve_closes_the_incident_of_any_owner(service: Service, clock: Clock) -> None:
    """
    B41: bob's tickets stay assigned to him. The ticket of the next session is not acknowledged automatically.
    """
    await start_looping_session(service, clock, 1)
    await report_crash(service, clock, 1)
    clock.now += MINUTE
    second_ticket = await start_looping_session(service, clock, 2)
    await service.tickets.acknowledge(second_ticket.ticket_id, by="bob")
    await post_pagerduty_event(service, "resolved", await post_notification_webhook(service))
    assert (await reload_ticket(service, second_ticket)).acknowledged_by == "bob"
    await report_crash(service, clock, 2)
    clock.now += MINUTE

    third_ticket = await start_looping_session(service, clock, 3)
    assert (third_ticket.status, third_ticket.incident_id) == (TicketStatus.INTERVENING, "")


async def test_ticket_of_the_next_session_joins_a_reopened_pagerduty_incident(
    service: Service, clock: Clock
) -> None:
    """B123: the incident was reopened in PagerDuty."""
    await start_looping_session(service, clock, 1)
    await report_crash(service, clock, 1)
    clock.now += MINUTE
    second_ticket = await start_looping_session(service, clock, 2)
    groups = await post_notification_webhook(service)
    await post_pagerduty_event(service, "resolved", groups)
    await post_pagerduty_event(service, "reopened", groups)
    await report_crash(service, clock, 2)
    clock.now += MINUTE

    third_ticket = await start_looping_session(service, clock, 3)
    assert (third_ticket.status, third_ticket.incident_id) == (
        TicketStatus.INTERVENING,
        second_ticket.ticket_id,
    )


async def fail_recovery(service: Service, clock: Clock, number: int) -> EscalationTicket:
    """Let a session and its recovery fail, and return the notified ticket."""

    def make_event(kind: EventType, **data: object) -> AgentEvent:
        return make_session_event(kind, clock.now, number, "one", **data)

    await service.ingest([make_event(EventType.EXECUTION_STARTED, start_records=True)])
    clock.now += 5
    failed_event = make_event(EventType.EXECUTION_FAILED, error_type="OSError", error="x")
    recovery_fields = {"recovery_id": f"r{number}", "exhausted": True, "reason": "the third attempt failed"}
    await service.ingest([failed_event, make_event(EventType.RECOVERY_FAILED, **recovery_fields)])
    await until(
        lambda: (open_ticket := service.tickets.open_for("bee", f"bee-{number}")) and open_ticket.notified_at,
        f"the ticket of session {number} is notified",
    )
    ticket = service.tickets.open_for("bee", f"bee-{number}")
    assert ticket is not None
    assert ticket.kind is FindingKind.RECOVERY_FAILED
    return ticket


def make_session_event(
    kind: EventType, time: float, number: int, incarnation: str, **data: object
) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=time,
        agent_id="bee",
        session_id=f"bee-{number}",
        incarnation_id=incarnation,
        node_id="search",
        data=data,
    )


async def reload_ticket(service: Service, ticket: EscalationTicket) -> EscalationTicket:
    stored_ticket = await service.tickets.find(ticket.ticket_id)
    assert stored_ticket is not None
    return stored_ticket


async def test_abandoned_work_is_not_acknowledged_by_the_owner_of_a_closed_ticket(
    service: Service, clock: Clock
) -> None:
    """
    B122: ada acknowledged the ticket of session 2, which is closed. The ticket of session 3 is
    unacknowledged.
    """
    for number in (1, 2):
        ticket = await fail_recovery(service, clock, number)
        clock.now += MINUTE
    await service.tickets.acknowledge(ticket.ticket_id, by="ada")
    start_event = make_session_event(EventType.EXECUTION_STARTED, clock.now, 2, "again", start_records=True)
    clock.now += 20
    accepted_event = make_session_event(
        EventType.STEP_COMPLETED, clock.now, 2, "again", index=0, verdict="ACCEPT"
    )
    completed_event = make_session_event(EventType.EXECUTION_COMPLETED, clock.now, 2, "again")
    await service.ingest([start_event, accepted_event, completed_event])
    await until(lambda: service.tickets.open_for("bee", "bee-2") is None, "session 2 ends")
    assert (await reload_ticket(service, ticket)).acknowledged_by == "ada"
    clock.now += 30

    third_ticket = await fail_recovery(service, clock, 3)
    assert (third_ticket.status, third_ticket.acknowledged_by) == (TicketStatus.INTERVENING, "")


async def test_reminder_of_an_incident_is_not_repeated_for_its_other_tickets(
    service: Service, clock: Clock
) -> None:
    """B41, B123: another message about one of the tickets is not a reminder."""
    tickets = []
    for number in range(4):
        tickets.append(await start_looping_session(service, clock, number))
        clock.now += MINUTE
    await advance_minutes(service, clock, 65)
    earlier_alerts = await list_alerts(service)
    assert [turn for turn, _ in earlier_alerts] == ["", "", "1", "1"]

    for ticket in tickets[1:]:
        await service.tickets.intervene(ticket.ticket_id, "It still loops.", "high")
    assert len(await list_alerts(service)) == len(earlier_alerts)
