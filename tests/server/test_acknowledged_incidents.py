"""Acknowledged incidents: in PagerDuty or by their newest ticket, until withdrawn."""

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
from tests.server.test_crash_loop import MINUTE, Clock, crash, list_alerts, start_looping_session
from tests.waiting import until

SECRET = "pagerduty-webhook"

settings, consecutive_failures = crash_loop.settings, crash_loop.consecutive_failures
clock, service = crash_loop.clock, crash_loop.service


async def list_firing_alerts(service: Service) -> list[Notification]:
    """
    Return the firing alerts that Alertmanager gets: for each, the notification that stands for all its
    tickets.
    """
    reload_ticket: dict[str, Notification] = {}
    for notification in await service.store.read(read_active):
        if notification.is_firing(service.clock()):
            reload_ticket.setdefault(notification.key, notification)
    return list(reload_ticket.values())


async def post_notification_webhook(service: Service) -> set[str]:
    """Post Alertmanager's webhook about a PagerDuty notification of all firing alerts; return the groups."""
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
    """Let ada acknowledge or resolve incidents in PagerDuty."""
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
        await callbacks.pagerduty(body, signatures=f"v1={digest}")


async def pass_minutes(service: Service, clock: Clock, minutes: int) -> None:
    for _ in range(minutes):
        clock.now += MINUTE
        await service.tickets.settle(clock.now)


def list_acknowledged(service: Service) -> set[str]:
    return {ticket.acknowledged_by for ticket in service.tickets.open_tickets()}


async def test_pagerduty_acknowledgement_covers_all_tickets_of_the_incident(
    service: Service, clock: Clock
) -> None:
    """B41, B123: this includes tickets that joined after a reminder; none has reminders."""
    for number in range(16):
        await start_looping_session(service, clock, number)
        groups = await post_notification_webhook(service)
        await pass_minutes(service, clock, 4)
    assert [turn for turn, _ in await list_alerts(service)] == ["", "", "1", "1"]
    # Alertmanager has not sent the reminder yet.
    await post_pagerduty_event(service, "acknowledged", groups)
    assert list_acknowledged(service) == {"ada"}

    await start_looping_session(service, clock, 99)
    assert list_acknowledged(service) == {"ada"}
    before = await list_alerts(service)
    await pass_minutes(service, clock, 62)
    assert await list_alerts(service) == before


async def test_tickets_that_joined_before_the_first_notification_are_acknowledged_too(
    service: Service, clock: Clock
) -> None:
    """B41, B123: Alertmanager was unavailable, and then gets one alert for all of them."""
    for number in range(5):
        await start_looping_session(service, clock, number)
        clock.now += MINUTE
    await post_pagerduty_event(service, "acknowledged", await post_notification_webhook(service))

    assert list_acknowledged(service) == {"ada"}
    before = await list_alerts(service)
    await pass_minutes(service, clock, 70)
    assert await list_alerts(service) == before


async def test_crash_loop_continuing_after_its_incident_was_resolved_pages(
    service: Service, clock: Clock
) -> None:
    """B41, B123: the PagerDuty incident is closed; the next session is a separate incident with reminders."""
    for number in (1, 2):
        ticket = await start_looping_session(service, clock, number)
        await pass_minutes(service, clock, 1)
        groups = await post_notification_webhook(service)
        if number == 1:
            await crash(service, clock, number)
    await post_pagerduty_event(service, "resolved", groups)
    before = await list_alerts(service)
    await crash(service, clock, 2)

    third = None
    for number in range(3, 17):
        ticket = await start_looping_session(service, clock, number)
        third = third or ticket
        assert (ticket.status, ticket.acknowledged_by) == (TicketStatus.INTERVENING, "")
        assert ticket.incident_id == ("" if ticket is third else third.ticket_id)
        await pass_minutes(service, clock, 4)
        await crash(service, clock, number)
        clock.now += MINUTE
    assert [turn for turn, _ in (await list_alerts(service))[len(before) :]] == ["", "1"]


async def act_between_incarnations(service: Service, clock: Clock, kind: str) -> EscalationTicket:
    """Let ada acknowledge or resolve an incident while no incarnation runs; return the last ticket."""
    for number in (1, 2):
        ticket = await start_looping_session(service, clock, number)
        await pass_minutes(service, clock, 1)
        groups = await post_notification_webhook(service)
        await crash(service, clock, number)
        clock.now += MINUTE / 2
    assert (await reload_ticket(service, ticket)).closed_at is not None
    await post_pagerduty_event(service, kind, groups)
    return ticket


async def test_incident_resolved_in_pagerduty_between_two_incarnations_is_not_joined(
    service: Service, clock: Clock
) -> None:
    """B41, B123: the alert that was held open for the next session ends; that session pages."""
    before = await act_between_incarnations(service, clock, "resolved")
    assert await list_firing_alerts(service) == []
    result = await list_alerts(service)

    third = await start_looping_session(service, clock, 3)
    assert (third.status, third.acknowledged_by, third.incident_id) == (TicketStatus.INTERVENING, "", "")
    assert third.incident != before.incident
    assert [turn for turn, _ in (await list_alerts(service))[len(result) :]] == [""]


async def test_incident_acknowledged_in_pagerduty_between_two_incarnations_stays_acknowledged(
    service: Service, clock: Clock
) -> None:
    """B41, B123: the next session's ticket is acknowledged by the same person, and has no reminders."""
    before = await act_between_incarnations(service, clock, "acknowledged")
    result = await list_alerts(service)

    third = await start_looping_session(service, clock, 3)
    assert (third.status, third.acknowledged_by) == (TicketStatus.ACKNOWLEDGED, "ada")
    assert third.incident == before.incident
    await pass_minutes(service, clock, 62)
    assert await list_alerts(service) == result


async def test_pagerduty_resolve_closes_the_incident_for_any_owner(service: Service, clock: Clock) -> None:
    """
    B41: bob's tickets stay assigned to him; the ticket of the next session is not acknowledged automatically.
    """
    await start_looping_session(service, clock, 1)
    await crash(service, clock, 1)
    clock.now += MINUTE
    second = await start_looping_session(service, clock, 2)
    await service.tickets.acknowledge(second.ticket_id, by="bob")
    await post_pagerduty_event(service, "resolved", await post_notification_webhook(service))
    assert (await reload_ticket(service, second)).acknowledged_by == "bob"
    await crash(service, clock, 2)
    clock.now += MINUTE

    third = await start_looping_session(service, clock, 3)
    assert (third.status, third.incident_id) == (TicketStatus.INTERVENING, "")


async def test_reopened_pagerduty_incident_is_joined(service: Service, clock: Clock) -> None:
    """B123: the next session's ticket joins the reopened incident."""
    await start_looping_session(service, clock, 1)
    await crash(service, clock, 1)
    clock.now += MINUTE
    second = await start_looping_session(service, clock, 2)
    groups = await post_notification_webhook(service)
    await post_pagerduty_event(service, "resolved", groups)
    await post_pagerduty_event(service, "reopened", groups)
    await crash(service, clock, 2)
    clock.now += MINUTE

    third = await start_looping_session(service, clock, 3)
    assert (third.status, third.incident_id) == (TicketStatus.INTERVENING, second.ticket_id)


async def fail_recovery(service: Service, clock: Clock, number: int) -> EscalationTicket:
    """Let a session and its recovery fail; return the notified ticket."""

    def event(kind: EventType, **data: object) -> AgentEvent:
        return session_event(kind, clock.now, number, "one", **data)

    await service.ingest([event(EventType.EXECUTION_STARTED, start_records=True)])
    clock.now += 5
    failed = event(EventType.EXECUTION_FAILED, error_type="OSError", error="x")
    recovery_fields = {"recovery_id": f"r{number}", "exhausted": True, "reason": "the third try failed"}
    await service.ingest([failed, event(EventType.RECOVERY_FAILED, **recovery_fields)])
    await until(
        lambda: (one := service.tickets.open_for("bee", f"bee-{number}")) and one.notified_at,
        f"the ticket of session {number}",
    )
    ticket = service.tickets.open_for("bee", f"bee-{number}")
    assert ticket is not None
    assert ticket.kind is FindingKind.RECOVERY_FAILED
    return ticket


def session_event(kind: EventType, at: float, number: int, incarnation: str, **data: object) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=at,
        agent_id="bee",
        session_id=f"bee-{number}",
        incarnation_id=incarnation,
        node_id="search",
        data=data,
    )


async def reload_ticket(service: Service, ticket: EscalationTicket) -> EscalationTicket:
    reloaded = await service.tickets.find(ticket.ticket_id)
    assert reloaded is not None
    return reloaded


async def test_abandoned_work_is_not_acknowledged_by_the_owner_of_a_closed_ticket(
    service: Service, clock: Clock
) -> None:
    """
    B122: ada acknowledged the ticket of session 2, which is closed; the ticket of session 3 is
    unacknowledged.
    """
    for number in (1, 2):
        ticket = await fail_recovery(service, clock, number)
        clock.now += MINUTE
    await service.tickets.acknowledge(ticket.ticket_id, by="ada")
    start = session_event(EventType.EXECUTION_STARTED, clock.now, 2, "again", start_records=True)
    clock.now += 20
    accepted = session_event(EventType.STEP_COMPLETED, clock.now, 2, "again", index=0, verdict="ACCEPT")
    completed = session_event(EventType.EXECUTION_COMPLETED, clock.now, 2, "again")
    await service.ingest([start, accepted, completed])
    await until(lambda: service.tickets.open_for("bee", "bee-2") is None, "the end of session 2")
    assert (await reload_ticket(service, ticket)).acknowledged_by == "ada"
    clock.now += 30

    third = await fail_recovery(service, clock, 3)
    assert (third.status, third.acknowledged_by) == (TicketStatus.INTERVENING, "")


async def test_reminder_of_an_incident_is_not_repeated_for_its_other_tickets(
    service: Service, clock: Clock
) -> None:
    """B41, B123: another message about one of the tickets is not a reminder."""
    tickets = []
    for number in range(4):
        tickets.append(await start_looping_session(service, clock, number))
        clock.now += MINUTE
    await pass_minutes(service, clock, 65)
    before = await list_alerts(service)
    assert [turn for turn, _ in before] == ["", "", "1", "1"]

    for ticket in tickets[1:]:
        await service.tickets.intervene(ticket.ticket_id, "It still loops.", "high")
    assert len(await list_alerts(service)) == len(before)
