"""A real store, a peer on a real socket, and a real Alertmanager with a recorder of its messages."""

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
from queenright.server.ops.sockets import listen, make_socket_url, serve_app
from tests.alerting.parts import T0, FakePeer
from tests.alerting.real import RealAlertmanager, real_alertmanager, run_receivers
from tests.programs import VERSIONS


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    new_store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield new_store
    await new_store.close()


@dataclass
class ServedPeer:
    peer: FakePeer
    url: str


StartPeer = Callable[[], Awaitable[ServedPeer]]


@pytest.fixture
async def start_peer() -> AsyncIterator[StartPeer]:
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> ServedPeer:
            peer = FakePeer()
            sock = listen("127.0.0.1", 0, what="a peer", option="")
            stack.enter_context(contextlib.closing(sock))
            await stack.enter_async_context(serve_app(peer, sock))
            return ServedPeer(peer, make_socket_url(sock))

        yield start


@pytest.fixture
async def peer(start_peer: StartPeer) -> ServedPeer:
    return await start_peer()


@dataclass
class SteppedOutbox:
    """An outbox with a clock that only the test advances. ``restart`` keeps only the store."""

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
        self.instance = Outbox(
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

    async def write_change(self, ticket: EscalationTicket, **options: Any) -> None:
        await self.store.transact(lambda conn: enqueue(conn, ticket, self.settings, self.now, **options))

    async def deliver(self, after: float = 0.0) -> float:
        self.now += after
        return await self.instance.deliver_due(self.now)

    def read_metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


MakeOutbox = Callable[..., SteppedOutbox]


@pytest.fixture
async def make_outbox(store: Store) -> AsyncIterator[MakeOutbox]:
    outboxes: list[SteppedOutbox] = []

    def make(*urls: str, **settings: float | str) -> SteppedOutbox:
        outboxes.append(
            SteppedOutbox(store, AlertingSettings.model_validate({"alertmanager_urls": urls, **settings}))
        )
        return outboxes[-1]

    yield make
    for outbox in outboxes:
        for client in outbox.clients:
            await client.aclose()


@pytest.fixture(params=VERSIONS)
async def alertmanager(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RealAlertmanager]:
    """Yield the real program, in both versions, with the rendered configuration."""
    async with (
        run_receivers() as recorder,
        real_alertmanager(tmp_path, recorder, request.param) as real_program,
    ):
        yield real_program
