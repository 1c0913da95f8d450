"""Several sessions of one agent with the same problem, through the outbox and the real Alertmanager."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection

from queenright.alerting import notification_ledger
from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.callbacks.alertmanager import dedup_key
from queenright.alerting.notification import alert_key
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.recorder import RecordedMessage
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import Severity
from queenright.health.store.store import Store
from queenright.health.tickets.ticket import TicketStatus
from queenright.health.tickets.ticket_table import write_ticket
from queenright.runtime.events import AgentEvent
from tests.alerting.parts import make_ticket
from tests.alerting.real import RealAlertmanager, make_queen_alert

RESOLVED = {"status": TicketStatus.RESOLVED}


@dataclass
class AlertPipeline:
    """An outbox that sends to the real Alertmanager."""

    alertmanager: RealAlertmanager
    write: Callable[..., Awaitable[None]]
    """Write a change of a session's ticket, and deliver it."""
    deliver_at: Callable[[float], Awaitable[float]]
    """Deliver everything due at a time, in seconds since the epoch."""

    def list_messages(self, channel: str, status: str) -> list[RecordedMessage]:
        return [
            message
            for message in self.alertmanager.recorder.messages
            if (message.channel, message.status) == (channel, status)
        ]

    async def flush(self, marker: str) -> None:
        """Wait until Alertmanager has evaluated every group once more."""
        client = AlertmanagerClient()
        await client.post_alerts(self.alertmanager.address, [make_queen_alert("warning", agent=marker)])
        await client.aclose()
        await self.alertmanager.wait_until(
            lambda: any(marker in message.title for message in self.alertmanager.recorder.messages), marker
        )


@pytest.fixture
async def pipeline(alertmanager: RealAlertmanager, store: Store) -> AsyncIterator[AlertPipeline]:
    settings = AlertingSettings(alertmanager_urls=(alertmanager.url,))

    async def publish(*events: AgentEvent) -> None: ...

    client = AlertmanagerClient()
    outbox = Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())

    async def write(session: int, **changes: Any) -> None:
        options = {name: changes.pop(name) for name in ("earlier_tickets", "hold_seconds") if name in changes}
        values = {"session_id": f"session-{session}", "ticket_id": f"ticket-{session}", **changes}
        await store.transact(
            lambda conn: enqueue(conn, make_ticket(**values), settings, time.time(), **options)
        )
        await outbox.deliver_due(time.time())

    yield AlertPipeline(alertmanager, write, outbox.deliver_due)
    await client.aclose()


async def test_second_session_is_notified_while_the_first_fires(pipeline: AlertPipeline) -> None:
    """B122: a Slack message in the same group, and a separate PagerDuty incident, each with its end."""
    await pipeline.write(1)
    await pipeline.alertmanager.wait_until(
        lambda: pipeline.list_messages("slack", "firing") and pipeline.list_messages("pagerduty", "firing"),
        "1",
    )
    await pipeline.write(2)
    await pipeline.alertmanager.wait_until(
        lambda: (
            len(pipeline.list_messages("slack", "firing"))
            == len(pipeline.list_messages("pagerduty", "firing"))
            == 2
        ),
        "the second",
    )
    assert pipeline.list_messages("slack", "firing")[1].title.startswith("2 ")

    await pipeline.write(1, **RESOLVED)
    await pipeline.alertmanager.wait_until(
        lambda: bool(pipeline.list_messages("pagerduty", "resolved")), "the first's end"
    )
    await pipeline.alertmanager.wait_until(
        lambda: len(pipeline.list_messages("slack", "firing")) == 3, "the remaining alert"
    )
    await pipeline.flush("marker-1")
    await pipeline.flush("marker-2")
    first, second = (message.body["dedup_key"] for message in pipeline.list_messages("pagerduty", "firing"))
    assert first != second
    assert [message.body["dedup_key"] for message in pipeline.list_messages("pagerduty", "resolved")] == [
        first
    ]
    assert not pipeline.list_messages("slack", "resolved")
    assert "(resolved)" in pipeline.list_messages("slack", "firing")[2].text

    await pipeline.write(2, **RESOLVED)
    await pipeline.alertmanager.wait_until(
        lambda: len(pipeline.list_messages("pagerduty", "resolved")) == 2, "the second's end"
    )
    await pipeline.alertmanager.wait_until(
        lambda: bool(pipeline.list_messages("slack", "resolved")), "and in Slack"
    )
    assert pipeline.list_messages("pagerduty", "resolved")[1].body["dedup_key"] == second
    assert not pipeline.alertmanager.recorder.rejections


async def test_less_severe_session_is_notified_while_another_is_critical(pipeline: AlertPipeline) -> None:
    """B122: the inhibitions by severity and by reminder act on one ticket, not on the agent's others."""
    await pipeline.write(1)
    await pipeline.alertmanager.wait_until(
        lambda: len(pipeline.alertmanager.recorder.messages) == 2, "the critical one"
    )
    await pipeline.write(2, severity=Severity.MEDIUM)
    await pipeline.alertmanager.wait_until(
        lambda: any("(medium)" in message.title for message in pipeline.list_messages("slack", "firing")),
        "the less severe one",
    )
    start = time.time() - 7200
    await pipeline.write(1, reminders=1, notified_at=start, bumped_at=start + 3600)
    await pipeline.alertmanager.wait_until(
        lambda: any(
            "First reminder" in message.title for message in pipeline.list_messages("pagerduty", "firing")
        ),
        "the reminder",
    )
    await pipeline.flush("marker")
    assert not pipeline.list_messages("slack", "resolved")
    assert not pipeline.list_messages("pagerduty", "resolved")


async def test_crash_loop_is_one_incident_with_a_count(pipeline: AlertPipeline, store: Store) -> None:
    """B123: the ticket of each session joins the open alert; the next message has their number."""
    await pipeline.write(1)
    await pipeline.alertmanager.wait_until(
        lambda: len(pipeline.alertmanager.recorder.messages) == 2, "the first"
    )
    await pipeline.alertmanager.wait_until(
        lambda: bool(pipeline.alertmanager.receivers.notification_posts),
        "the report of the notified receivers",
    )
    page = pipeline.alertmanager.receivers.notification_posts[0]
    alerts = [("ticket-1", alert_key(page["alerts"][0]["labels"]), "firing")]
    key = dedup_key(page["groupKey"])
    await store.transact(lambda conn: _enqueue_sessions(conn, range(1, 9)))
    await store.transact(
        lambda conn: notification_ledger.record_deliveries(conn, "pagerduty", key, alerts, time.time())
    )
    for session in range(2, 9):
        await pipeline.write(session, earlier_tickets=[f"ticket-{session - 1}"])
    await pipeline.flush("marker-1")
    await pipeline.flush("marker-2")
    own_pages = [
        message for message in pipeline.alertmanager.recorder.messages if "researcher" in message.title
    ]
    assert len(own_pages) == 2
    # Every receiver of the incident has been notified of all its tickets.
    tickets = [f"ticket-{n}" for n in range(1, 9)]
    records = await store.read(lambda conn: notification_ledger.list_deliveries(conn, tickets))
    assert {
        name: [notification.receiver for notification in notifications]
        for name, notifications in records.items()
    } == {name: ["pagerduty"] for name in tickets}

    start = time.time() - 7200
    await pipeline.write(1, reminders=1, notified_at=start, bumped_at=start + 3600)
    await pipeline.alertmanager.wait_until(
        lambda: len(pipeline.list_messages("pagerduty", "firing")) == 2, "the reminder"
    )
    assert "8 sessions" in pipeline.list_messages("pagerduty", "firing")[1].title
    for session in range(1, 8):
        await pipeline.write(session, **RESOLVED)
    await pipeline.flush("marker-3")
    assert not pipeline.list_messages("pagerduty", "resolved")
    await pipeline.write(8, **RESOLVED)
    await pipeline.alertmanager.wait_until(
        lambda: bool(pipeline.list_messages("pagerduty", "resolved")), "the end"
    )
    assert (
        len(
            {
                message.body["dedup_key"]
                for message in pipeline.alertmanager.recorder.messages
                if message.channel == "pagerduty"
            }
        )
        == 1
    )


async def test_agent_whose_tickets_close_before_the_next_opens_is_one_incident(
    pipeline: AlertPipeline,
) -> None:
    """B123: its incident is held open for a further session, and ends if none starts."""
    ended_fields = {"status": TicketStatus.WORKER_GONE}
    await pipeline.write(1)
    await pipeline.alertmanager.wait_until(
        lambda: len(pipeline.alertmanager.recorder.messages) == 2, "the first"
    )
    for session in range(1, 8):
        await pipeline.write(session, **ended_fields, hold_seconds=15.0)
        await pipeline.write(session + 1, earlier_tickets=[f"ticket-{n}" for n in range(session, 0, -1)])
    await pipeline.flush("marker-1")
    await pipeline.flush("marker-2")
    assert (
        len([message for message in pipeline.alertmanager.recorder.messages if "researcher" in message.title])
        == 2
    )

    await pipeline.write(8, **ended_fields, hold_seconds=15.0)
    deadline = time.monotonic() + 90
    while not (
        pipeline.list_messages("pagerduty", "resolved") and pipeline.list_messages("slack", "resolved")
    ):
        assert time.monotonic() < deadline, "the end"
        await pipeline.deliver_at(time.time())
        await asyncio.sleep(0.2)
    [end] = pipeline.list_messages("slack", "resolved")
    assert "8 sessions" in f"{end.title} {end.text}"


async def test_ticket_that_rises_and_ends_at_once_sends_no_false_all_clear(pipeline: AlertPipeline) -> None:
    """B37: the end of a replaced alert is not the end of its ticket."""
    await pipeline.write(1, severity=Severity.MEDIUM)
    await pipeline.alertmanager.wait_until(
        lambda: pipeline.list_messages("slack", "firing"), "the less severe alert"
    )
    await pipeline.write(1, severity=Severity.HIGH)
    await pipeline.write(1, severity=Severity.HIGH, status=TicketStatus.WORKER_GONE)
    await pipeline.flush("marker-1")
    await pipeline.flush("marker-2")
    assert not [
        message for message in pipeline.list_messages("slack", "resolved") if "(medium)" in message.title
    ]

    next_due = await pipeline.deliver_at(time.time())
    assert next_due <= time.time() + AlertingSettings().late_resolve_seconds
    await pipeline.deliver_at(time.time() + AlertingSettings().late_resolve_seconds)
    await pipeline.alertmanager.wait_until(lambda: pipeline.list_messages("pagerduty", "resolved"), "its end")
    await pipeline.flush("marker-3")
    end_titles = [message.title for message in pipeline.list_messages("slack", "resolved")]
    assert len(end_titles) == 1
    assert "without recovering" in end_titles[0]


def _enqueue_sessions(conn: Connection, sessions: Iterable[int]) -> None:
    for n in sessions:
        session_ticket = make_ticket(
            ticket_id=f"ticket-{n}", session_id=f"session-{n}", fingerprint=f"{n:032}"
        )
        write_ticket(conn, session_ticket)
