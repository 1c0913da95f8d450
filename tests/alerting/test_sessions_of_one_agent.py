"""Several sessions of one agent in the same trouble, through the outbox and the real Alertmanager."""

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
from tests.alerting.parts import ticket
from tests.alerting.real import RealAlertmanager, queen

RESOLVED = {"status": TicketStatus.RESOLVED}


@dataclass
class Line:
    """An outbox that leads to the real Alertmanager."""

    alertmanager: RealAlertmanager
    write: Callable[..., Awaitable[None]]
    """Write a change of a session's ticket, and deliver it."""
    deliver_at: Callable[[float], Awaitable[float]]
    """Deliver what is due at a time, in seconds since the epoch."""

    def messages_on(self, channel: str, status: str) -> list[RecordedMessage]:
        return [m for m in self.alertmanager.recorder.messages if (m.channel, m.status) == (channel, status)]

    async def flush(self, marker: str) -> None:
        """Return when Alertmanager has looked at every group once more."""
        client = AlertmanagerClient()
        await client.post_alerts(self.alertmanager.address, [queen("warning", agent=marker)])
        await client.aclose()
        await self.alertmanager.until(
            lambda: any(marker in m.title for m in self.alertmanager.recorder.messages), marker
        )


@pytest.fixture
async def line(alertmanager: RealAlertmanager, store: Store) -> AsyncIterator[Line]:
    settings = AlertingSettings(alertmanager_urls=(alertmanager.url,))

    async def publish(*events: AgentEvent) -> None: ...

    client = AlertmanagerClient()
    outbox = Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())

    async def write(session: int, **changes: Any) -> None:
        more = {name: changes.pop(name) for name in ("earlier_tickets", "hold_seconds") if name in changes}
        values = {"session_id": f"session-{session}", "ticket_id": f"ticket-{session}", **changes}
        await store.transact(lambda conn: enqueue(conn, ticket(**values), settings, time.time(), **more))
        await outbox.deliver_due(time.time())

    yield Line(alertmanager, write, outbox.deliver_due)
    await client.aclose()


async def test_second_session_is_notified_while_the_first_fires(line: Line) -> None:
    """B122: in Slack a message in the same group, in PagerDuty an incident of its own, each with its end."""
    await line.write(1)
    await line.alertmanager.until(
        lambda: line.messages_on("slack", "firing") and line.messages_on("pagerduty", "firing"), "1"
    )
    await line.write(2)
    await line.alertmanager.until(
        lambda: len(line.messages_on("slack", "firing")) == len(line.messages_on("pagerduty", "firing")) == 2,
        "the second",
    )
    assert line.messages_on("slack", "firing")[1].title.startswith("2 ")

    await line.write(1, **RESOLVED)
    await line.alertmanager.until(lambda: bool(line.messages_on("pagerduty", "resolved")), "the first's end")
    await line.alertmanager.until(lambda: len(line.messages_on("slack", "firing")) == 3, "what is left")
    await line.flush("marker-1")
    await line.flush("marker-2")
    first, second = (m.body["dedup_key"] for m in line.messages_on("pagerduty", "firing"))
    assert first != second
    assert [m.body["dedup_key"] for m in line.messages_on("pagerduty", "resolved")] == [first]
    assert not line.messages_on("slack", "resolved")
    assert "(resolved)" in line.messages_on("slack", "firing")[2].text

    await line.write(2, **RESOLVED)
    await line.alertmanager.until(
        lambda: len(line.messages_on("pagerduty", "resolved")) == 2, "the second's end"
    )
    await line.alertmanager.until(lambda: bool(line.messages_on("slack", "resolved")), "and in Slack")
    assert line.messages_on("pagerduty", "resolved")[1].body["dedup_key"] == second
    assert not line.alertmanager.recorder.rejections


async def test_less_severe_session_is_notified_while_another_is_critical(line: Line) -> None:
    """B122: the inhibitions by severity and by reminder act on one ticket, not on the agent's others."""
    await line.write(1)
    await line.alertmanager.until(lambda: len(line.alertmanager.recorder.messages) == 2, "the critical one")
    await line.write(2, severity=Severity.MEDIUM)
    await line.alertmanager.until(
        lambda: any("(medium)" in m.title for m in line.messages_on("slack", "firing")), "the lesser one"
    )
    start = time.time() - 7200
    await line.write(1, reminders=1, notified_at=start, bumped_at=start + 3600)
    await line.alertmanager.until(
        lambda: any("First reminder" in m.title for m in line.messages_on("pagerduty", "firing")),
        "the reminder",
    )
    await line.flush("marker")
    assert not line.messages_on("slack", "resolved")
    assert not line.messages_on("pagerduty", "resolved")


async def test_crash_loop_is_one_incident_with_a_count(line: Line, store: Store) -> None:
    """B123: the ticket of each session joins the open alert; the next message has their number."""
    await line.write(1)
    await line.alertmanager.until(lambda: len(line.alertmanager.recorder.messages) == 2, "the first")
    await line.alertmanager.until(lambda: bool(line.alertmanager.people.told), "word of whom it told")
    page = line.alertmanager.people.told[0]
    alerts = [("ticket-1", alert_key(page["alerts"][0]["labels"]), "firing")]
    key = dedup_key(page["groupKey"])
    await store.transact(lambda conn: _known(conn, range(1, 9)))
    await store.transact(
        lambda conn: notification_ledger.record_deliveries(conn, "pagerduty", key, alerts, time.time())
    )
    for session in range(2, 9):
        await line.write(session, earlier_tickets=[f"ticket-{session - 1}"])
    await line.flush("marker-1")
    await line.flush("marker-2")
    ours = [m for m in line.alertmanager.recorder.messages if "researcher" in m.title]
    assert len(ours) == 2
    # Whoever was told of the incident was told of them all.
    tickets = [f"ticket-{n}" for n in range(1, 9)]
    records = await store.read(lambda conn: notification_ledger.list_deliveries(conn, tickets))
    assert {name: [one.receiver for one in some] for name, some in records.items()} == {
        name: ["pagerduty"] for name in tickets
    }

    start = time.time() - 7200
    await line.write(1, reminders=1, notified_at=start, bumped_at=start + 3600)
    await line.alertmanager.until(lambda: len(line.messages_on("pagerduty", "firing")) == 2, "the reminder")
    assert "8 sessions" in line.messages_on("pagerduty", "firing")[1].title
    for session in range(1, 8):
        await line.write(session, **RESOLVED)
    await line.flush("marker-3")
    assert not line.messages_on("pagerduty", "resolved")
    await line.write(8, **RESOLVED)
    await line.alertmanager.until(lambda: bool(line.messages_on("pagerduty", "resolved")), "the end")
    assert (
        len({m.body["dedup_key"] for m in line.alertmanager.recorder.messages if m.channel == "pagerduty"})
        == 1
    )


async def test_agent_whose_tickets_close_before_the_next_opens_is_one_incident(line: Line) -> None:
    """B123: its incident is held open for a further session, and ends if none comes."""
    gone = {"status": TicketStatus.WORKER_GONE}
    await line.write(1)
    await line.alertmanager.until(lambda: len(line.alertmanager.recorder.messages) == 2, "the first")
    for session in range(1, 8):
        await line.write(session, **gone, hold_seconds=15.0)
        await line.write(session + 1, earlier_tickets=[f"ticket-{n}" for n in range(session, 0, -1)])
    await line.flush("marker-1")
    await line.flush("marker-2")
    assert len([m for m in line.alertmanager.recorder.messages if "researcher" in m.title]) == 2

    await line.write(8, **gone, hold_seconds=15.0)
    deadline = time.monotonic() + 90
    while not (line.messages_on("pagerduty", "resolved") and line.messages_on("slack", "resolved")):
        assert time.monotonic() < deadline, "the end"
        await line.deliver_at(time.time())
        await asyncio.sleep(0.2)
    [end] = line.messages_on("slack", "resolved")
    assert "8 sessions" in f"{end.title} {end.text}"


async def test_ticket_that_rose_and_ended_at_once_gives_no_false_all_clear(line: Line) -> None:
    """B37: what was replaced says nothing of its end, which is not how the ticket ended."""
    await line.write(1, severity=Severity.MEDIUM)
    await line.alertmanager.until(lambda: line.messages_on("slack", "firing"), "the lesser alert")
    await line.write(1, severity=Severity.HIGH)
    await line.write(1, severity=Severity.HIGH, status=TicketStatus.WORKER_GONE)
    await line.flush("marker-1")
    await line.flush("marker-2")
    assert not [m for m in line.messages_on("slack", "resolved") if "(medium)" in m.title]

    due = await line.deliver_at(time.time())
    assert due <= time.time() + AlertingSettings().late_resolve_seconds
    await line.deliver_at(time.time() + AlertingSettings().late_resolve_seconds)
    await line.alertmanager.until(lambda: line.messages_on("pagerduty", "resolved"), "its end")
    await line.flush("marker-3")
    ends = [m.title for m in line.messages_on("slack", "resolved")]
    assert len(ends) == 1
    assert "without recovering" in ends[0]


def _known(conn: Connection, sessions: Iterable[int]) -> None:
    for n in sessions:
        one = ticket(ticket_id=f"ticket-{n}", session_id=f"session-{n}", fingerprint=f"{n:032}")
        write_ticket(conn, one)
