"""Alerts of tickets that share a cause: each ticket is notified once."""

from __future__ import annotations

import time

import pytest

from queenright.alerting.notification_records import list_notifications
from queenright.alerting.notification_rules import enqueue
from queenright.alerting.notification_table import read_active
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import Severity
from queenright.health.store.store import Store
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from tests.alerting.parts import make_ticket
from tests.alerting.test_sessions_of_one_agent import AlertPipeline, pipeline

__all__ = ["pipeline"]

SETTINGS = AlertingSettings()
NOW, CAUSE = 1_800_000_000.0, "tool:search"


async def write(store: Store, ticket: EscalationTicket, at: float, *, hold_seconds: float = 0.0) -> None:
    await store.transact(lambda conn: enqueue(conn, ticket, SETTINGS, at, hold_seconds=hold_seconds))


async def list_firing(store: Store, at: float) -> list[tuple[str, str]]:
    """Return ticket and group of the firing alerts."""
    notifications = await store.read(read_active)
    return [
        (notification.ticket_id, notification.labels.get("storm", ""))
        for notification in notifications
        if notification.is_firing(at)
    ]


@pytest.mark.parametrize(("seconds_later", "group"), [(5.0, CAUSE), (60.0, "")])
async def test_ticket_that_joins_an_incident_is_notified_once(
    store: Store, seconds_later: float, group: str
) -> None:
    """
    B104: the ticket is in the incident's message while Alertmanager still collects; later it has its own
    message.
    """
    first_ticket = make_ticket(ticket_id="t1", notified_at=NOW)
    await write(store, first_ticket, NOW)
    await write(store, first_ticket.model_copy(update={"storm_id": CAUSE}), NOW + seconds_later)

    assert await list_firing(store, NOW + seconds_later) == [("t1", group)]


async def test_tickets_that_join_an_incident_at_once_are_one_page(pipeline: AlertPipeline) -> None:
    """B104: Alertmanager drops an alert that ends while it collects."""
    now = time.time()
    for session in (1, 2):
        await pipeline.write(session, notified_at=now)
    for session in (1, 2, 3):
        await pipeline.write(session, notified_at=now, storm_id=CAUSE)
    await pipeline.alertmanager.wait_until(
        lambda: pipeline.list_messages("slack", "firing") and pipeline.list_messages("pagerduty", "firing"),
        "the page",
    )
    await pipeline.flush("marker")

    [page] = pipeline.list_messages("pagerduty", "firing")
    assert page.title.startswith("3 ")
    assert not pipeline.list_messages("pagerduty", "resolved")
    assert not pipeline.list_messages("slack", "resolved")


async def test_reminder_of_a_ticket_that_joined_an_incident_keeps_its_group(store: Store) -> None:
    first_ticket = make_ticket(ticket_id="t1", notified_at=NOW)
    await write(store, first_ticket, NOW)
    child = first_ticket.model_copy(update={"storm_id": CAUSE, "reminders": 1})
    await write(store, child, NOW + 3600)

    assert await list_firing(store, NOW + 3600) == [("t1", "")]


@pytest.mark.parametrize("group", [CAUSE, ""])
async def test_rise_of_a_ticket_of_an_incident_is_one_alert_in_its_group(store: Store, group: str) -> None:
    """B102, B104: this holds whether or not the incident's cause was known at the first notification."""
    first_ticket = make_ticket(ticket_id="t1", severity=Severity.MEDIUM, storm_id=group, notified_at=NOW)
    await write(store, first_ticket, NOW)
    await write(store, first_ticket.model_copy(update={"storm_id": CAUSE}), NOW + 60)
    for severity in (Severity.HIGH, Severity.CRITICAL):
        child = first_ticket.model_copy(update={"storm_id": CAUSE, "severity": severity})
        await write(store, child, NOW + 120)

    [(ticket_id, labels)] = [
        (notification.ticket_id, notification.labels)
        for notification in await store.read(read_active)
        if notification.is_firing(NOW + 121)
    ]
    assert (ticket_id, labels.get("storm", ""), labels["severity"]) == ("t1", group, "critical")
    assert len(await store.read(lambda conn: list_notifications(conn, now=NOW + 121))) == 2


async def test_alert_of_an_ended_session_is_held_until_calls_succeed(store: Store) -> None:
    """B104: the end of a run does not end the shared cause."""
    for ticket_id in ("t1", "t2"):
        await write(store, make_ticket(ticket_id=ticket_id, storm_id=CAUSE), NOW)
    ended_ticket = make_ticket(ticket_id="t1", storm_id=CAUSE, status=TicketStatus.WORKER_GONE)
    await write(store, ended_ticket, NOW + 60, hold_seconds=600)
    assert await list_firing(store, NOW + 61) == [("t1", CAUSE), ("t2", CAUSE)]

    recovery_fields = {"status": TicketStatus.RESOLVED, "condition_cleared_at": NOW + 100}
    await write(store, make_ticket(ticket_id="t2", storm_id=CAUSE, **recovery_fields), NOW + 120)

    assert await list_firing(store, NOW + 121) == []
