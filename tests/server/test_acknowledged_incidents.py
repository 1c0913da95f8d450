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
from tests.server.test_crash_loop import MINUTE, Clock, alerts, crash, live
from tests.waiting import until

SECRET = "pagerduty-webhook"

settings, consecutive_failures = crash_loop.settings, crash_loop.consecutive_failures
clock, service = crash_loop.clock, crash_loop.service


async def firing(service: Service) -> list[Notification]:
    """Return what Alertmanager is posted: of each alert the notification that speaks for all tickets."""
    found: dict[str, Notification] = {}
    for one in await service.store.read(read_active):
        if one.is_firing(service.clock()):
            found.setdefault(one.key, one)
    return list(found.values())


async def tell(service: Service) -> set[str]:
    """Post what Alertmanager posts when it has told PagerDuty of all that fires; return the groups."""
    groups = set()
    for one in await firing(service):
        alert = {"status": "firing", "labels": one.labels, "annotations": one.annotations, "startsAt": "x"}
        group = f"group of {one.labels['ticket_id']}"
        body = {"version": "4", "groupKey": group, "receiver": "pagerduty", "alerts": [alert]}
        await service.callbacks.record_notification(json.dumps(body).encode())
        groups.add(group)
    return groups


async def pagerduty(service: Service, kind: str, groups: set[str]) -> None:
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


def in_hand(service: Service) -> set[str]:
    return {ticket.acknowledged_by for ticket in service.tickets.open_tickets()}


async def test_incident_acknowledged_in_pagerduty_is_in_hand_with_all_its_tickets(
    service: Service, clock: Clock
) -> None:
    """B41, B123: also with those that joined after a reminder; none has reminders."""
    for number in range(16):
        await live(service, clock, number)
        groups = await tell(service)
        await pass_minutes(service, clock, 4)
    assert [turn for turn, _ in await alerts(service)] == ["", "", "1", "1"]
    # Alertmanager has not told of the reminder yet.
    await pagerduty(service, "acknowledged", groups)
    assert in_hand(service) == {"ada"}

    await live(service, clock, 99)
    assert in_hand(service) == {"ada"}
    before = await alerts(service)
    await pass_minutes(service, clock, 62)
    assert await alerts(service) == before


async def test_tickets_that_joined_before_the_first_notification_are_acknowledged_too(
    service: Service, clock: Clock
) -> None:
    """B41, B123: Alertmanager was away, and is posted one alert for all of them."""
    for number in range(5):
        await live(service, clock, number)
        clock.now += MINUTE
    await pagerduty(service, "acknowledged", await tell(service))

    assert in_hand(service) == {"ada"}
    before = await alerts(service)
    await pass_minutes(service, clock, 70)
    assert await alerts(service) == before


async def test_crash_loop_continuing_after_its_incident_was_resolved_pages(
    service: Service, clock: Clock
) -> None:
    """B41, B123: its incident there is closed; the next session is a separate incident with reminders."""
    for number in (1, 2):
        ticket = await live(service, clock, number)
        await pass_minutes(service, clock, 1)
        groups = await tell(service)
        if number == 1:
            await crash(service, clock, number)
    await pagerduty(service, "resolved", groups)
    before = await alerts(service)
    await crash(service, clock, 2)

    third = None
    for number in range(3, 17):
        ticket = await live(service, clock, number)
        third = third or ticket
        assert (ticket.status, ticket.acknowledged_by) == (TicketStatus.INTERVENING, "")
        assert ticket.incident_id == ("" if ticket is third else third.ticket_id)
        await pass_minutes(service, clock, 4)
        await crash(service, clock, number)
        clock.now += MINUTE
    assert [turn for turn, _ in (await alerts(service))[len(before) :]] == ["", "1"]


async def between_lives(service: Service, clock: Clock, kind: str) -> EscalationTicket:
    """Let ada acknowledge or resolve an incident while no life of the agent is on; return the last ticket."""
    for number in (1, 2):
        ticket = await live(service, clock, number)
        await pass_minutes(service, clock, 1)
        groups = await tell(service)
        await crash(service, clock, number)
        clock.now += MINUTE / 2
    assert (await found(service, ticket)).closed_at is not None
    await pagerduty(service, kind, groups)
    return ticket


async def test_incident_resolved_in_pagerduty_between_two_incarnations_is_not_joined(
    service: Service, clock: Clock
) -> None:
    """B41, B123: its alert, which was held open for the next session, ends; that session pages."""
    before = await between_lives(service, clock, "resolved")
    assert await firing(service) == []
    result = await alerts(service)

    third = await live(service, clock, 3)
    assert (third.status, third.acknowledged_by, third.incident_id) == (TicketStatus.INTERVENING, "", "")
    assert third.incident != before.incident
    assert [turn for turn, _ in (await alerts(service))[len(result) :]] == [""]


async def test_incident_acknowledged_in_pagerduty_between_two_incarnations_stays_acknowledged(
    service: Service, clock: Clock
) -> None:
    """B41, B123: the next session's ticket is acknowledged by the same person, and has no reminders."""
    before = await between_lives(service, clock, "acknowledged")
    result = await alerts(service)

    third = await live(service, clock, 3)
    assert (third.status, third.acknowledged_by) == (TicketStatus.ACKNOWLEDGED, "ada")
    assert third.incident == before.incident
    await pass_minutes(service, clock, 62)
    assert await alerts(service) == result


async def test_pagerduty_resolve_closes_the_incident_for_any_owner(service: Service, clock: Clock) -> None:
    """B41: bob's tickets stay his; the ticket of the next session is not acknowledged automatically."""
    await live(service, clock, 1)
    await crash(service, clock, 1)
    clock.now += MINUTE
    second = await live(service, clock, 2)
    await service.tickets.acknowledge(second.ticket_id, by="bob")
    await pagerduty(service, "resolved", await tell(service))
    assert (await found(service, second)).acknowledged_by == "bob"
    await crash(service, clock, 2)
    clock.now += MINUTE

    third = await live(service, clock, 3)
    assert (third.status, third.incident_id) == (TicketStatus.INTERVENING, "")


async def test_reopened_pagerduty_incident_is_joined(service: Service, clock: Clock) -> None:
    """B123."""
    await live(service, clock, 1)
    await crash(service, clock, 1)
    clock.now += MINUTE
    second = await live(service, clock, 2)
    groups = await tell(service)
    await pagerduty(service, "resolved", groups)
    await pagerduty(service, "reopened", groups)
    await crash(service, clock, 2)
    clock.now += MINUTE

    third = await live(service, clock, 3)
    assert (third.status, third.incident_id) == (TicketStatus.INTERVENING, second.ticket_id)


async def given_up(service: Service, clock: Clock, number: int) -> EscalationTicket:
    """Let a session fail and its recovery come to nothing; return the ticket that people were notified of."""

    def event(kind: EventType, **data: object) -> AgentEvent:
        return of_session(kind, clock.now, number, "one", **data)

    await service.ingest([event(EventType.EXECUTION_STARTED, start_records=True)])
    clock.now += 5
    failed = event(EventType.EXECUTION_FAILED, error_type="OSError", error="x")
    given = {"recovery_id": f"r{number}", "exhausted": True, "reason": "the third try failed"}
    await service.ingest([failed, event(EventType.RECOVERY_FAILED, **given)])
    await until(
        lambda: (one := service.tickets.open_for("bee", f"bee-{number}")) and one.notified_at,
        f"the ticket of session {number}",
    )
    ticket = service.tickets.open_for("bee", f"bee-{number}")
    assert ticket is not None
    assert ticket.kind is FindingKind.RECOVERY_FAILED
    return ticket


def of_session(kind: EventType, at: float, number: int, incarnation: str, **data: object) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=at,
        agent_id="bee",
        session_id=f"bee-{number}",
        incarnation_id=incarnation,
        node_id="search",
        data=data,
    )


async def found(service: Service, ticket: EscalationTicket) -> EscalationTicket:
    one = await service.tickets.find(ticket.ticket_id)
    assert one is not None
    return one


async def test_abandoned_work_is_not_acknowledged_by_the_owner_of_a_closed_ticket(
    service: Service, clock: Clock
) -> None:
    """B122: ada had the ticket of session 2, which is closed; nobody has that of session 3."""
    for number in (1, 2):
        ticket = await given_up(service, clock, number)
        clock.now += MINUTE
    await service.tickets.acknowledge(ticket.ticket_id, by="ada")
    start = of_session(EventType.EXECUTION_STARTED, clock.now, 2, "again", start_records=True)
    clock.now += 20
    accepted = of_session(EventType.STEP_COMPLETED, clock.now, 2, "again", index=0, verdict="ACCEPT")
    completed = of_session(EventType.EXECUTION_COMPLETED, clock.now, 2, "again")
    await service.ingest([start, accepted, completed])
    await until(lambda: service.tickets.open_for("bee", "bee-2") is None, "the end of session 2")
    assert (await found(service, ticket)).acknowledged_by == "ada"
    clock.now += 30

    third = await given_up(service, clock, 3)
    assert (third.status, third.acknowledged_by) == (TicketStatus.INTERVENING, "")


async def test_reminder_of_an_incident_is_not_sent_again_for_its_other_tickets(
    service: Service, clock: Clock
) -> None:
    """B41, B123: another message about one of them is no reminder."""
    tickets = []
    for number in range(4):
        tickets.append(await live(service, clock, number))
        clock.now += MINUTE
    await pass_minutes(service, clock, 65)
    before = await alerts(service)
    assert [turn for turn, _ in before] == ["", "", "1", "1"]

    for ticket in tickets[1:]:
        await service.tickets.intervene(ticket.ticket_id, "It still loops.", "high")
    assert len(await alerts(service)) == len(before)
