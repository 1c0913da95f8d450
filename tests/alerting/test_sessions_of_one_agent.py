"""Several sessions of one agent in the same trouble, through the outbox and the real Alertmanager."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.recorder import Message
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import Severity
from queenright.health.store import Store
from queenright.health.tickets import TicketStatus
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

    def got(self, channel: str, status: str) -> list[Message]:
        return [m for m in self.alertmanager.recorder.received if (m.channel, m.status) == (channel, status)]

    async def flush(self, marker: str) -> None:
        """Return when Alertmanager has looked at every group once more."""
        client = AlertmanagerClient()
        await client.post_alerts(self.alertmanager.address, [queen("warning", agent=marker)])
        await client.aclose()
        await self.alertmanager.until(
            lambda: any(marker in m.title for m in self.alertmanager.recorder.received), marker
        )


@pytest.fixture
async def line(alertmanager: RealAlertmanager, store: Store) -> AsyncIterator[Line]:
    settings = AlertingSettings(alertmanager_urls=(alertmanager.url,))

    async def publish(*events: AgentEvent) -> None: ...

    client = AlertmanagerClient()
    outbox = Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())

    async def write(session: int, **changes: Any) -> None:
        values = {"worker_session_id": f"session-{session}", "ticket_id": f"ticket-{session}", **changes}
        await store.transact(lambda conn: enqueue(conn, ticket(**values), settings, time.time()))
        await outbox.deliver_due(time.time())

    yield Line(alertmanager, write)
    await client.aclose()


async def test_a_second_session_in_the_same_trouble_is_told_while_the_first_fires(line: Line) -> None:
    """B122: in Slack a message in the same group, in PagerDuty an incident of its own, each with its end."""
    await line.write(1)
    await line.alertmanager.until(
        lambda: line.got("slack", "firing") and line.got("pagerduty", "firing"), "1"
    )
    await line.write(2)
    await line.alertmanager.until(
        lambda: len(line.got("slack", "firing")) == len(line.got("pagerduty", "firing")) == 2, "the second"
    )
    assert line.got("slack", "firing")[1].title.startswith("2 ")

    await line.write(1, **RESOLVED)
    await line.alertmanager.until(lambda: bool(line.got("pagerduty", "resolved")), "the first's end")
    await line.alertmanager.until(lambda: len(line.got("slack", "firing")) == 3, "what is left")
    await line.flush("marker-1")
    await line.flush("marker-2")
    first, second = (m.body["dedup_key"] for m in line.got("pagerduty", "firing"))
    assert first != second
    assert [m.body["dedup_key"] for m in line.got("pagerduty", "resolved")] == [first]
    assert not line.got("slack", "resolved")
    assert "(resolved)" in line.got("slack", "firing")[2].text

    await line.write(2, **RESOLVED)
    await line.alertmanager.until(lambda: len(line.got("pagerduty", "resolved")) == 2, "the second's end")
    await line.alertmanager.until(lambda: bool(line.got("slack", "resolved")), "and in Slack")
    assert line.got("pagerduty", "resolved")[1].body["dedup_key"] == second
    assert not line.alertmanager.recorder.refused


async def test_a_lesser_session_is_told_while_another_is_critical(line: Line) -> None:
    """B122: the inhibitions by severity and by reminder act on one ticket, not on the agent's others."""
    await line.write(1)
    await line.alertmanager.until(lambda: len(line.alertmanager.recorder.received) == 2, "the critical one")
    await line.write(2, severity=Severity.MEDIUM)
    await line.alertmanager.until(
        lambda: any("(medium)" in m.title for m in line.got("slack", "firing")), "the lesser one"
    )
    begun = time.time() - 7200
    await line.write(1, reminders=1, notified_at=begun, bumped_at=begun + 3600)
    await line.alertmanager.until(
        lambda: any("First reminder" in m.title for m in line.got("pagerduty", "firing")), "the reminder"
    )
    await line.flush("marker")
    assert not line.got("slack", "resolved")
    assert not line.got("pagerduty", "resolved")
