"""A cluster of two real Alertmanagers: both have every alert, people get one message, and one is enough."""

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
from tests.alerting.parts import ticket
from tests.alerting.real import Peers, alertmanager_peers, people, queen
from tests.programs import VERSIONS
from tests.waiting import until

ONCE = {("slack", "firing"): 1, ("pagerduty", "firing"): 1}
AND_OVER = ONCE | {("slack", "resolved"): 1, ("pagerduty", "resolved"): 1}


class Cluster:
    """Two peers, and an outbox that tells both."""

    def __init__(self, peers: Peers, store: Store) -> None:
        self._store = store
        self.peers = peers
        self.people = peers.people
        self.settings = AlertingSettings(alertmanager_urls=peers.urls)
        self.outbox = self.outbox_of(*peers.urls)

    def outbox_of(self, *urls: str) -> Outbox:
        """An outbox that tells some peers."""

        async def publish(*events: AgentEvent) -> None: ...

        return Outbox(
            self._store,
            AlertingSettings(alertmanager_urls=urls),
            self.peers.client,
            clock=time.time,
            publish=publish,
            registry=CollectorRegistry(),
        )

    async def enqueue(self, one: EscalationTicket) -> None:
        """Decide something about a ticket."""
        await self._store.transact(lambda conn: enqueue(conn, one, self.settings, time.time()))

    async def say(self, one: EscalationTicket) -> None:
        """Decide something about a ticket, and tell every peer that can be reached."""
        await self.enqueue(one)
        await self.outbox.deliver_due(time.time())
        # The first peer gets an end later.
        await self.outbox.deliver_due(time.time() + 15)

    async def knows(self, name: str, agent: str) -> bool:
        """Tell whether a peer has an agent's alert."""
        return bool(await self.peers.client.alerts(self.peers.running[name].address, agent=agent))

    async def eventually_knows(self, name: str, agent: str) -> None:
        """Tell the peers again, as the outbox does, until one has an agent's alert."""
        for _ in range(1200):
            await self.outbox.deliver_due(time.time() + 120)
            if await self.knows(name, agent):
                return
            await _moment()
        pytest.fail(f"{name} never heard of {agent}")

    async def all_had_their_turn(self, marker: str) -> None:
        """
        Wait until each peer has told, or has left to the other, what it knew when this was called.

        Of a marker only one peer knows, so it tells that itself, and in its turn: after what came before.
        """
        for name, one in self.peers.running.items():
            agent = f"{marker}-{name}"
            await self.peers.client.post_alerts(one.address, [queen("warning", agent)])
            await until(lambda agent=agent: self.received(agent), f"the marker {agent}")  # type: ignore[misc]  # mypy cannot infer a lambda's default

    def received(self, agent: str) -> Counter[tuple[str, str]]:
        """Count what people were notified of an agent, by channel and status."""
        return self.people.received(agent)


async def _moment() -> None:
    await asyncio.sleep(0.05)


@pytest.fixture(params=VERSIONS)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        everybody = await stack.enter_async_context(people())
        peers = await stack.enter_async_context(alertmanager_peers(tmp_path, everybody, request.param))
        yield Cluster(peers, store)


def of(agent: str, **changes: object) -> EscalationTicket:
    return ticket(agent_id=agent, ticket_id=f"ticket-{agent}", **changes)


async def test_cluster_sends_one_page_if_either_peer_dies(cluster: Cluster) -> None:
    """B43, B77: told once, resolved once; a peer that is down loses nothing and repeats nothing."""
    await cluster.say(of("first"))
    assert await cluster.knows("a", "first")
    assert await cluster.knows("b", "first")
    await until(lambda: cluster.received("first") == ONCE, "one page on each channel")
    await cluster.all_had_their_turn("early")
    await cluster.say(of("first", status=TicketStatus.RESOLVED))
    await until(lambda: cluster.received("first") == AND_OVER, "its end")

    # One is down when it is decided, and hears of it when it is back.
    await cluster.peers.kill("b")
    await cluster.say(of("second"))
    await until(lambda: cluster.received("second") == ONCE, "a page by the other alone")
    await cluster.peers.start("b")
    await cluster.peers.members(2)
    await cluster.eventually_knows("b", "second")
    await cluster.all_had_their_turn("back")
    assert cluster.received("first") == AND_OVER
    assert cluster.received("second") == ONCE

    # One is killed when both have taken it, before it could tell anybody.
    await cluster.say(of("third"))
    await cluster.peers.kill("a")
    await until(lambda: cluster.received("third") == ONCE, "a page by the one that is left")
    for agent in ("second", "third"):
        await cluster.say(of(agent, status=TicketStatus.RESOLVED))
    for agent in ("second", "third"):
        await until(lambda agent=agent: cluster.received(agent) == AND_OVER, f"the end of {agent}")  # type: ignore[misc]  # mypy cannot infer a lambda's default
    await cluster.all_had_their_turn("late")

    assert [cluster.received(agent) for agent in ("first", "second", "third")] == [AND_OVER] * 3
    assert not list(cluster.people.recorder.rejections)


async def test_end_between_two_flushes_of_two_peers_is_one_message(tmp_path: Path, store: Store) -> None:
    """B118: the last peer has seen an alert when the first sends its end, and does not send it once more."""
    async with contextlib.AsyncExitStack() as stack:
        everybody = await stack.enter_async_context(people())
        peers = await stack.enter_async_context(
            alertmanager_peers(tmp_path, everybody, peer_timeout="15s", group_interval="20s")
        )
        cluster = Cluster(peers, store)
        # The last peer flushes after 1 and 21 seconds, the first after 2.5 and 22.5.
        await cluster.enqueue(of("early"))
        began = time.time()
        await cluster.outbox_of(peers.urls[1]).deliver_due(began)
        await asyncio.sleep(1.5)
        delivering = asyncio.create_task(cluster.outbox.run())
        await until(lambda: cluster.received("early") == ONCE, "one page")
        await asyncio.sleep(began + 21.8 - time.time())
        await cluster.enqueue(of("early", status=TicketStatus.RESOLVED))
        cluster.outbox.wake()
        await until(lambda: cluster.received("early") - Counter(ONCE), "its end")
        # By then, the last peer has waited after its next flush.
        await asyncio.sleep(20)
        delivering.cancel()

        assert cluster.received("early") == AND_OVER
