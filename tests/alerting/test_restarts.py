"""Messages across restarts of the service and of the real Alertmanager."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.recorder import RecordedMessage
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import Severity
from queenright.health.store.store import Store
from queenright.health.tickets.ticket import TicketStatus
from queenright.runtime.events import AgentEvent
from tests.alerting.parts import ticket
from tests.alerting.real import RealAlertmanager, queen_alert, real_alertmanager, run_receivers, write_config
from tests.ports import reserve_port
from tests.programs import VERSIONS

ENDS = (TicketStatus.RESOLVED, TicketStatus.WORKER_GONE, TicketStatus.DISMISSED)


async def publish(*events: AgentEvent) -> None: ...


def make_outbox(store: Store, client: AlertmanagerClient, settings: AlertingSettings) -> Outbox:
    return Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())


async def write_and_deliver(
    store: Store, alertmanager: RealAlertmanager, *, at: float = 0.0, **changes: Any
) -> None:
    """Write a change of a ticket, and let a service that has just started deliver it."""
    settings = AlertingSettings(alertmanager_urls=(alertmanager.url,))
    now = at or time.time()
    more = {name: changes.pop(name) for name in ("earlier_tickets", "hold_seconds") if name in changes}
    if changes:
        await store.transact(lambda conn: enqueue(conn, ticket(**changes), settings, now, **more))
    client = AlertmanagerClient()
    await make_outbox(store, client, settings).deliver_due(now)
    await client.aclose()


@pytest.mark.parametrize("status", ENDS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_end_before_a_stop_is_sent_and_later_ticket_fires(
    tmp_path: Path, store: Store, version: str, status: TicketStatus
) -> None:
    """
    B124: Alertmanager gets an end and is stopped before it notifies.

    It stores what it notified, but not the alerts. So it must get the end again, and a new ticket of the same
    agent and cause must not look like the notified alert.
    """
    with reserve_port() as port:
        async with run_receivers() as everybody:
            received = everybody.recorder.messages

            def messages_on(channel: str) -> list[RecordedMessage]:
                return [m for m in received if m.channel == channel]

            slow = write_config(tmp_path / "slow", everybody, group_interval="10m")
            async with real_alertmanager(tmp_path, everybody, version, config=slow, port=port) as first:
                await write_and_deliver(store, first, ticket_id="t1")
                await first.until(lambda: len(received) == 2, "the first ticket on both channels")
                await write_and_deliver(store, first, ticket_id="t1", status=status)
            assert len(received) == 2
            async with real_alertmanager(tmp_path, everybody, version, port=port) as second:
                await write_and_deliver(store, second, ticket_id="t2", session_id="session-2")
                await second.until(
                    lambda: len(messages_on("pagerduty")) == 3, "the first's end and the second ticket"
                )
                await second.until(
                    lambda: any(m.status == "firing" for m in messages_on("slack")[1:]),
                    "the second ticket in Slack",
                )

            [one, *rest] = [(m.status, m.body["dedup_key"]) for m in messages_on("pagerduty")]
            assert one[0] == "firing"
            assert ("resolved", one[1]) in rest
            [(status_of_other, other)] = [remaining for remaining in rest if remaining[1] != one[1]]
            assert status_of_other == "firing"
            assert other != one[1]
            assert messages_on("slack")[0].status == messages_on("slack")[-1].status == "firing"


@pytest.mark.parametrize("status", ENDS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_end_before_an_unnoticed_restart_is_sent_once(
    tmp_path: Path, store: Store, version: str, status: TicketStatus
) -> None:
    """B124: nothing is due while Alertmanager is unavailable, so no request to it fails."""
    async with contextlib.AsyncExitStack() as stack:
        port = stack.enter_context(reserve_port())
        everybody = await stack.enter_async_context(run_receivers())
        received = everybody.recorder.messages
        settings = AlertingSettings(alertmanager_urls=(f"http://127.0.0.1:{port}",))
        client = AlertmanagerClient()
        stack.push_async_callback(client.aclose)
        outbox = make_outbox(store, client, settings)

        async def write(now: float, **changes: Any) -> None:
            await store.transact(lambda conn: enqueue(conn, ticket(**changes), settings, now))
            await outbox.deliver_due(now)

        slow = write_config(tmp_path / "slow", everybody, group_interval="10m")
        async with real_alertmanager(tmp_path, everybody, version, config=slow, port=port) as first:
            await write(time.time())
            await first.until(lambda: len(received) == 2, "the ticket on both channels")
            await write(time.time(), status=status)
        assert len(received) == 2

        async with real_alertmanager(tmp_path, everybody, version, port=port) as second:
            for minute in range(1, 4):
                await outbox.deliver_due(time.time() + 61 * minute)
            await second.until(lambda: len(received) == 4, "the end on both channels")
            await client.post_alerts(second.address, [queen_alert("warning", agent="marker")])
            await second.until(lambda: any("marker" in one.title for one in received), "the marker")
        ends = [m.channel for m in received if m.status == "resolved"]
        assert sorted(ends) == ["pagerduty", "slack"]
        assert outbox.status().peers[0].ok


@pytest.mark.parametrize("is_held", [False, True])
async def test_less_severe_alert_of_a_risen_incident_sends_no_false_all_clear(
    tmp_path: Path, store: Store, is_held: bool
) -> None:
    """B37, B124: a ticket with a higher severity joins; Alertmanager and the service restart twice."""
    ended: dict[str, Any] = {
        "ticket_id": "t1",
        "severity": Severity.MEDIUM,
        "status": TicketStatus.WORKER_GONE,
    }
    joined_incident: dict[str, Any] = {
        "ticket_id": "t2",
        "session_id": "session-2",
        "earlier_tickets": ["t1"],
    }
    start = time.time() - 7200
    reminded = joined_incident | {"reminders": 1, "notified_at": start, "bumped_at": start + 3600}
    with reserve_port() as port:
        async with run_receivers() as everybody:
            received = everybody.recorder.messages
            async with real_alertmanager(tmp_path, everybody, port=port) as first:
                await write_and_deliver(store, first, ticket_id="t1", severity=Severity.MEDIUM)
                await first.until(lambda: len(received) == 1, "the less severe alert")
                if is_held:
                    await write_and_deliver(store, first, hold_seconds=0.5, **ended)
                await write_and_deliver(store, first, **joined_incident)
                await first.until(lambda: any(m.channel == "pagerduty" for m in received), "the greater")
                if not is_held:
                    await write_and_deliver(store, first, **ended)
                await wait_for_flush(first, "marker-1")
                await write_and_deliver(store, first)
                await wait_for_flush(first, "marker-2")
            async with real_alertmanager(tmp_path, everybody, port=port) as second:
                await write_and_deliver(store, second)
                await wait_for_flush(second, "marker-3")
                await write_and_deliver(store, second, **reminded)
                await wait_for_flush(second, "marker-4")
            async with real_alertmanager(tmp_path, everybody, port=port) as third:
                await write_and_deliver(store, third)
                await wait_for_flush(third, "marker-5")
                await wait_for_flush(third, "marker-6")
            assert any("First reminder" in m.title for m in received)
            assert not [m for m in received if m.status == "resolved"]


async def wait_for_flush(alertmanager: RealAlertmanager, marker: str) -> None:
    """Wait until Alertmanager has evaluated every group once more."""
    client = AlertmanagerClient()
    await client.post_alerts(alertmanager.address, [queen_alert("warning", agent=marker)])
    await client.aclose()
    await alertmanager.until(lambda: any(marker in m.title for m in alertmanager.recorder.messages), marker)


@pytest.mark.parametrize("version", VERSIONS)
async def test_days_of_downtime_cause_no_false_resolve(tmp_path: Path, store: Store, version: str) -> None:
    """An alert outlives its last repeat by a week, and the service's restart sends nothing again."""
    async with (
        run_receivers() as everybody,
        real_alertmanager(tmp_path, everybody, version) as alertmanager,
    ):
        received = everybody.recorder.messages
        # As if it was last repeated six days ago.
        await write_and_deliver(store, alertmanager, ticket_id="t1", at=time.time() - 6 * 86_400)
        await alertmanager.until(lambda: len(received) == 2, "the ticket on both channels")
        for marker in ("one", "another"):
            client = AlertmanagerClient()
            await client.post_alerts(alertmanager.address, [queen_alert("warning", agent=marker)])
            await client.aclose()
            await alertmanager.until(lambda m=marker: any(m in one.title for one in received), marker)  # type: ignore[misc]  # mypy cannot infer a lambda's default
            await write_and_deliver(store, alertmanager)

        assert [m.status for m in received if "researcher" in m.title] == ["firing", "firing"]
