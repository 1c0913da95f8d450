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
from tests.alerting.parts import make_ticket
from tests.alerting.real import (
    RealAlertmanager,
    make_queen_alert,
    real_alertmanager,
    run_receivers,
    write_config,
)
from tests.ports import reserve_port
from tests.programs import VERSIONS

END_STATUSES = (TicketStatus.RESOLVED, TicketStatus.WORKER_GONE, TicketStatus.DISMISSED)


async def publish(*events: AgentEvent) -> None: ...


def make_outbox(store: Store, client: AlertmanagerClient, settings: AlertingSettings) -> Outbox:
    return Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())


async def write_and_deliver(
    store: Store, alertmanager: RealAlertmanager, *, at: float = 0.0, **changes: Any
) -> None:
    """Write a change of a ticket, and let a service that has just started deliver it."""
    settings = AlertingSettings(alertmanager_urls=(alertmanager.url,))
    now = at or time.time()
    options = {name: changes.pop(name) for name in ("earlier_tickets", "hold_seconds") if name in changes}
    if changes:
        await store.transact(lambda conn: enqueue(conn, make_ticket(**changes), settings, now, **options))
    client = AlertmanagerClient()
    await make_outbox(store, client, settings).deliver_due(now)
    await client.aclose()


@pytest.mark.parametrize("status", END_STATUSES)
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
        async with run_receivers() as receivers:
            messages = receivers.recorder.messages

            def list_messages(channel: str) -> list[RecordedMessage]:
                return [message for message in messages if message.channel == channel]

            slow_config = write_config(tmp_path / "slow", receivers, group_interval="10m")
            async with real_alertmanager(
                tmp_path, receivers, version, config=slow_config, port=port
            ) as first:
                await write_and_deliver(store, first, ticket_id="t1")
                await first.wait_until(lambda: len(messages) == 2, "the first ticket on both channels")
                await write_and_deliver(store, first, ticket_id="t1", status=status)
            assert len(messages) == 2
            async with real_alertmanager(tmp_path, receivers, version, port=port) as second:
                await write_and_deliver(store, second, ticket_id="t2", session_id="session-2")
                await second.wait_until(
                    lambda: len(list_messages("pagerduty")) == 3, "the first's end and the second ticket"
                )
                await second.wait_until(
                    lambda: any(message.status == "firing" for message in list_messages("slack")[1:]),
                    "the second ticket in Slack",
                )

            [first_key, *other_keys] = [
                (message.status, message.body["dedup_key"]) for message in list_messages("pagerduty")
            ]
            assert first_key[0] == "firing"
            assert ("resolved", first_key[1]) in other_keys
            [(status_of_other, other)] = [
                remaining for remaining in other_keys if remaining[1] != first_key[1]
            ]
            assert status_of_other == "firing"
            assert other != first_key[1]
            assert list_messages("slack")[0].status == list_messages("slack")[-1].status == "firing"


@pytest.mark.parametrize("status", END_STATUSES)
@pytest.mark.parametrize("version", VERSIONS)
async def test_end_before_an_unnoticed_restart_is_sent_once(
    tmp_path: Path, store: Store, version: str, status: TicketStatus
) -> None:
    """B124: nothing is due while Alertmanager is unavailable, so no request to it fails."""
    async with contextlib.AsyncExitStack() as stack:
        port = stack.enter_context(reserve_port())
        receivers = await stack.enter_async_context(run_receivers())
        messages = receivers.recorder.messages
        settings = AlertingSettings(alertmanager_urls=(f"http://127.0.0.1:{port}",))
        client = AlertmanagerClient()
        stack.push_async_callback(client.aclose)
        outbox = make_outbox(store, client, settings)

        async def write(now: float, **changes: Any) -> None:
            await store.transact(lambda conn: enqueue(conn, make_ticket(**changes), settings, now))
            await outbox.deliver_due(now)

        slow_config = write_config(tmp_path / "slow", receivers, group_interval="10m")
        async with real_alertmanager(tmp_path, receivers, version, config=slow_config, port=port) as first:
            await write(time.time())
            await first.wait_until(lambda: len(messages) == 2, "the ticket on both channels")
            await write(time.time(), status=status)
        assert len(messages) == 2

        async with real_alertmanager(tmp_path, receivers, version, port=port) as second:
            for minute in range(1, 4):
                await outbox.deliver_due(time.time() + 61 * minute)
            await second.wait_until(lambda: len(messages) == 4, "the end on both channels")
            await client.post_alerts(second.address, [make_queen_alert("warning", agent="marker")])
            await second.wait_until(
                lambda: any("marker" in message.title for message in messages), "the marker"
            )
        end_channels = [message.channel for message in messages if message.status == "resolved"]
        assert sorted(end_channels) == ["pagerduty", "slack"]
        assert outbox.status().peers[0].ok


@pytest.mark.parametrize("is_held", [False, True])
async def test_less_severe_alert_of_a_risen_incident_sends_no_false_all_clear(
    tmp_path: Path, store: Store, is_held: bool
) -> None:
    """B37, B124: a ticket with a higher severity joins; Alertmanager and the service restart twice."""
    ended_fields: dict[str, Any] = {
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
    reminder_fields = joined_incident | {"reminders": 1, "notified_at": start, "bumped_at": start + 3600}
    with reserve_port() as port:
        async with run_receivers() as receivers:
            messages = receivers.recorder.messages
            async with real_alertmanager(tmp_path, receivers, port=port) as first:
                await write_and_deliver(store, first, ticket_id="t1", severity=Severity.MEDIUM)
                await first.wait_until(lambda: len(messages) == 1, "the less severe alert")
                if is_held:
                    await write_and_deliver(store, first, hold_seconds=0.5, **ended_fields)
                await write_and_deliver(store, first, **joined_incident)
                await first.wait_until(
                    lambda: any(message.channel == "pagerduty" for message in messages),
                    "the more severe alert",
                )
                if not is_held:
                    await write_and_deliver(store, first, **ended_fields)
                await wait_for_flush(first, "marker-1")
                await write_and_deliver(store, first)
                await wait_for_flush(first, "marker-2")
            async with real_alertmanager(tmp_path, receivers, port=port) as second:
                await write_and_deliver(store, second)
                await wait_for_flush(second, "marker-3")
                await write_and_deliver(store, second, **reminder_fields)
                await wait_for_flush(second, "marker-4")
            async with real_alertmanager(tmp_path, receivers, port=port) as third:
                await write_and_deliver(store, third)
                await wait_for_flush(third, "marker-5")
                await wait_for_flush(third, "marker-6")
            assert any("First reminder" in message.title for message in messages)
            assert not [message for message in messages if message.status == "resolved"]


async def wait_for_flush(alertmanager: RealAlertmanager, marker: str) -> None:
    """Wait until Alertmanager has evaluated every group once more."""
    client = AlertmanagerClient()
    await client.post_alerts(alertmanager.address, [make_queen_alert("warning", agent=marker)])
    await client.aclose()
    await alertmanager.wait_until(
        lambda: any(marker in message.title for message in alertmanager.recorder.messages), marker
    )


@pytest.mark.parametrize("version", VERSIONS)
async def test_days_of_downtime_cause_no_false_resolve(tmp_path: Path, store: Store, version: str) -> None:
    """An alert outlives its last repeat by a week, and the service's restart sends nothing again."""
    async with (
        run_receivers() as receivers,
        real_alertmanager(tmp_path, receivers, version) as alertmanager,
    ):
        messages = receivers.recorder.messages
        # As if it was last repeated six days ago.
        await write_and_deliver(store, alertmanager, ticket_id="t1", at=time.time() - 6 * 86_400)
        await alertmanager.wait_until(lambda: len(messages) == 2, "the ticket on both channels")
        for marker in ("one", "another"):
            client = AlertmanagerClient()
            await client.post_alerts(alertmanager.address, [make_queen_alert("warning", agent=marker)])
            await client.aclose()
            await alertmanager.wait_until(
                lambda marker=marker: any(marker in message.title for message in messages),  # type: ignore[misc]  # mypy cannot infer a lambda's default
                marker,
            )
            await write_and_deliver(store, alertmanager)

        assert [message.status for message in messages if "researcher" in message.title] == [
            "firing",
            "firing",
        ]
