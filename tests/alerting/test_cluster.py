"""
A cluster of two real Alertmanagers: both get every alert, each message is sent once, and one peer is enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.settings import AlertingSettings
from queenright.health.store.store import Store
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.runtime.events import AgentEvent
from tests.alerting.parts import make_ticket
from tests.alerting.real import Peers, alertmanager_peers, make_queen_alert, run_receivers
from tests.programs import VERSIONS
from tests.waiting import until

FIRING_ONCE = {("slack", "firing"): 1, ("pagerduty", "firing"): 1}
FIRING_AND_RESOLVED = FIRING_ONCE | {("slack", "resolved"): 1, ("pagerduty", "resolved"): 1}


class Cluster:
    """Two peers, and an outbox that sends to both."""

    def __init__(self, peers: Peers, store: Store) -> None:
        self._store = store
        self.peers = peers
        self.receivers = peers.receivers
        self.settings = AlertingSettings(alertmanager_urls=peers.urls)
        self.outbox = self.make_outbox(*peers.urls)

    def make_outbox(self, *urls: str) -> Outbox:
        """Return an outbox that sends to these peers."""

        async def publish(*events: AgentEvent) -> None: ...

        return Outbox(
            self._store,
            AlertingSettings(alertmanager_urls=urls),
            self.peers.client,
            clock=time.time,
            publish=publish,
            registry=CollectorRegistry(),
        )

    async def enqueue(self, ticket: EscalationTicket) -> None:
        """Write a change of a ticket to the outbox."""
        await self._store.transact(lambda conn: enqueue(conn, ticket, self.settings, time.time()))

    async def enqueue_and_deliver(self, ticket: EscalationTicket) -> None:
        """Write a change of a ticket, and deliver it to every reachable peer."""
        await self.enqueue(ticket)
        await self.outbox.deliver_due(time.time())
        # The first peer gets an end later.
        await self.outbox.deliver_due(time.time() + 15)

    async def has_alert(self, name: str, agent: str) -> bool:
        """Return whether a peer has an agent's alert."""
        return bool(await self.peers.client.alerts(self.peers.running[name].address, agent=agent))

    async def deliver_until_known(self, name: str, agent: str) -> None:
        """Repeat the delivery, as the outbox does, until a peer has an agent's alert."""
        for _ in range(1200):
            await self.outbox.deliver_due(time.time() + 120)
            if await self.has_alert(name, agent):
                return
            await _sleep_briefly()
        pytest.fail(f"peer {name} has no alert about {agent}")

    async def wait_for_flushes(self, marker: str) -> None:
        """
        Wait until each peer has notified, or left to the other, everything that it knew before the call.

        Only one peer knows a marker alert, so it notifies that itself, after the earlier alerts.
        """
        for name, peer in self.peers.running.items():
            agent = f"{marker}-{name}"
            await self.peers.client.post_alerts(peer.address, [make_queen_alert("warning", agent)])
            await until(lambda agent=agent: self.count_messages(agent), f"the marker {agent}")  # type: ignore[misc]  # mypy cannot infer a lambda's default

    def count_messages(self, agent: str) -> Counter[tuple[str, str]]:
        """Count the messages about an agent, by channel and status."""
        return self.receivers.count_messages(agent)


async def _sleep_briefly() -> None:
    await asyncio.sleep(0.05)


@pytest.fixture(params=VERSIONS)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        receivers = await stack.enter_async_context(run_receivers())
        peers = await stack.enter_async_context(alertmanager_peers(tmp_path, receivers, request.param))
        yield Cluster(peers, store)


def make_ticket_about(agent: str, **changes: object) -> EscalationTicket:
    return make_ticket(agent_id=agent, ticket_id=f"ticket-{agent}", **changes)


async def test_cluster_sends_one_page_if_either_peer_dies(cluster: Cluster) -> None:
    """B43, B77: one firing message, one resolved message; a peer that is down loses and repeats nothing."""
    await cluster.enqueue_and_deliver(make_ticket_about("first"))
    assert await cluster.has_alert("a", "first")
    assert await cluster.has_alert("b", "first")
    await until(lambda: cluster.count_messages("first") == FIRING_ONCE, "one page on each channel")
    await cluster.wait_for_flushes("early")
    await cluster.enqueue_and_deliver(make_ticket_about("first", status=TicketStatus.RESOLVED))
    await until(lambda: cluster.count_messages("first") == FIRING_AND_RESOLVED, "its end")

    # One peer is down at the time of the change, and gets it when it is back.
    await cluster.peers.kill("b")
    await cluster.enqueue_and_deliver(make_ticket_about("second"))
    await until(lambda: cluster.count_messages("second") == FIRING_ONCE, "a page from the other peer alone")
    await cluster.peers.start("b")
    await cluster.peers.wait_for_members(2)
    await cluster.deliver_until_known("b", "second")
    await cluster.wait_for_flushes("back")
    assert cluster.count_messages("first") == FIRING_AND_RESOLVED
    assert cluster.count_messages("second") == FIRING_ONCE

    # One peer is killed after both have the alert, before it could notify.
    await cluster.enqueue_and_deliver(make_ticket_about("third"))
    await cluster.peers.kill("a")
    await until(lambda: cluster.count_messages("third") == FIRING_ONCE, "a page from the remaining peer")
    for agent in ("second", "third"):
        await cluster.enqueue_and_deliver(make_ticket_about(agent, status=TicketStatus.RESOLVED))
    for agent in ("second", "third"):
        await until(
            lambda agent=agent: cluster.count_messages(agent) == FIRING_AND_RESOLVED,  # type: ignore[misc]  # mypy cannot infer a lambda's default
            f"the end of {agent}",
        )
    await cluster.wait_for_flushes("late")

    assert [cluster.count_messages(agent) for agent in ("first", "second", "third")] == [
        FIRING_AND_RESOLVED
    ] * 3
    assert not list(cluster.receivers.recorder.rejections)


async def test_end_between_two_flushes_of_two_peers_is_one_message(tmp_path: Path, store: Store) -> None:
    """B118: the last peer has seen the alert when the first sends its end, and does not send it again."""
    async with contextlib.AsyncExitStack() as stack:
        receivers = await stack.enter_async_context(run_receivers())
        peers = await stack.enter_async_context(
            alertmanager_peers(tmp_path, receivers, peer_timeout="15s", group_interval="20s")
        )
        cluster = Cluster(peers, store)
        # The last peer flushes after 1 and 21 seconds, the first after 2.5 and 22.5.
        await cluster.enqueue(make_ticket_about("early"))
        start = time.time()
        await cluster.make_outbox(peers.urls[1]).deliver_due(start)
        await asyncio.sleep(1.5)
        delivery_task = asyncio.create_task(cluster.outbox.run())
        await until(lambda: cluster.count_messages("early") == FIRING_ONCE, "one page")
        await asyncio.sleep(start + 21.8 - time.time())
        await cluster.enqueue(make_ticket_about("early", status=TicketStatus.RESOLVED))
        cluster.outbox.wake()
        await until(lambda: cluster.count_messages("early") - Counter(FIRING_ONCE), "its end")
        # By then, the last peer has waited after its next flush.
        await asyncio.sleep(20)
        delivery_task.cancel()

        assert cluster.count_messages("early") == FIRING_AND_RESOLVED
