"""A real store, a peer behind a real socket, and the real Alertmanager with a recorder behind it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.settings import AlertingSettings
from queenright.health.store.store import Store
from queenright.health.tickets.ticket import EscalationTicket
from queenright.runtime.events import AgentEvent
from queenright.server.ops.sockets import listen, serve_app, socket_url
from tests.alerting.parts import T0, MoodyPeer
from tests.alerting.real import RealAlertmanager, people, real_alertmanager
from tests.programs import VERSIONS


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield opened
    await opened.close()


@dataclass
class ServedPeer:
    peer: MoodyPeer
    url: str


StartPeer = Callable[[], Awaitable[ServedPeer]]


@pytest.fixture
async def start_peer() -> AsyncIterator[StartPeer]:
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> ServedPeer:
            peer = MoodyPeer()
            sock = listen("127.0.0.1", 0, what="a peer", option="")
            stack.enter_context(contextlib.closing(sock))
            await stack.enter_async_context(serve_app(peer, sock))
            return ServedPeer(peer, socket_url(sock))

        yield start


@pytest.fixture
async def peer(start_peer: StartPeer) -> ServedPeer:
    return await start_peer()


@dataclass
class Post:
    """An outbox with a clock that stands until it is moved. ``restart`` forgets all but the store."""

    store: Store
    settings: AlertingSettings
    now: float = T0
    events: list[AgentEvent] = field(default_factory=list)
    clients: list[AlertmanagerClient] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.registry = CollectorRegistry()
        self.clients.append(AlertmanagerClient())
        self.outbox = Outbox(
            self.store,
            self.settings,
            self.clients[-1],
            clock=lambda: self.now,
            publish=self._publish,
            registry=self.registry,
            jitter=lambda: 1.0,
        )

    async def _publish(self, *events: AgentEvent) -> None:
        self.events += events

    async def say(self, ticket: EscalationTicket, **more: Any) -> None:
        await self.store.transact(lambda conn: enqueue(conn, ticket, self.settings, self.now, **more))

    async def deliver(self, after: float = 0.0) -> float:
        self.now += after
        return await self.outbox.deliver_due(self.now)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


MakePost = Callable[..., Post]


@pytest.fixture
async def make_post(store: Store) -> AsyncIterator[MakePost]:
    made: list[Post] = []

    def make(*urls: str, **settings: float | str) -> Post:
        made.append(Post(store, AlertingSettings.model_validate({"alertmanager_urls": urls, **settings})))
        return made[-1]

    yield make
    for post in made:
        for client in post.clients:
            await client.aclose()


@pytest.fixture(params=VERSIONS)
async def alertmanager(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RealAlertmanager]:
    """The real program, in both versions, with the configuration that we render."""
    async with people() as recorder, real_alertmanager(tmp_path, recorder, request.param) as running:
        yield running
