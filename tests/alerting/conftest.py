"""A real store, a peer behind a real socket, and the real Alertmanager with a recorder behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.config import render_alertmanager
from queenright.alerting.files import templates_folder
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.peer import PeerAddress
from queenright.alerting.recorder import Recorder
from queenright.alerting.settings import AlertingSettings
from queenright.health.store import Store
from queenright.health.tickets import EscalationTicket
from queenright.runtime.events import AgentEvent
from queenright.server.children import Child
from queenright.server.programs import find_program
from queenright.server.sockets import free_port, listen, listening, url_of
from tests.alerting.parts import T0, MoodyPeer


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
            await stack.enter_async_context(listening(peer, sock))
            return ServedPeer(peer, url_of(sock))

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

    async def say(self, ticket: EscalationTicket) -> None:
        await self.store.transact(lambda conn: enqueue(conn, ticket, self.settings, self.now))

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


@dataclass
class RealAlertmanager:
    address: PeerAddress
    url: str
    recorder: Recorder
    woken: list[bytes]

    async def until(self, done: Callable[[], bool], what: str, seconds: float = 60) -> None:
        for _ in range(int(seconds / 0.05)):
            if done():
                return
            await asyncio.sleep(0.05)
        pytest.fail(f"within {seconds:g} s: {what}; received {list(self.recorder.received)}")


@pytest.fixture
async def alertmanager(tmp_path: Path) -> AsyncIterator[RealAlertmanager]:
    """The real program with the configuration that we render; recorders in place of people and judge."""
    program = find_program("alertmanager")
    assert program is not None, "this test needs the alertmanager program: `make test` fetches it"
    recorder, woken = Recorder(), list[bytes]()

    async def judge_or_recorder(scope, receive, send):  # type: ignore[no-untyped-def]  # plain ASGI
        if scope["path"] != "/api/alertmanager/webhook":
            await recorder(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        woken.append(body)
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    sock = listen("127.0.0.1", 0, what="the recorder", option="")
    with contextlib.closing(sock):
        async with listening(judge_or_recorder, sock):
            url = url_of(sock)
            slack, key = tmp_path / "slack", tmp_path / "key"
            slack.write_text(f"{url}/slack/services/T/B/X")
            key.write_text("k" * 32)
            config = tmp_path / "alertmanager.yml"
            config.write_text(
                render_alertmanager(
                    service_url=url,
                    slack_api_url_file=slack,
                    pagerduty_routing_key_file=key,
                    pagerduty_url=f"{url}/pagerduty/v2/enqueue",
                    deadman_url=f"{url}/deadman",
                    templates=templates_folder(),
                    group_wait="1s",
                    group_interval="1s",
                )
            )
            port = free_port("127.0.0.1", 0, what="Alertmanager", option="")
            child = await Child.start(
                "Alertmanager",
                [
                    program,
                    f"--config.file={config}",
                    f"--storage.path={tmp_path / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--cluster.listen-address=",
                ],
                tmp_path / "alertmanager.log",
            )
            try:
                address = PeerAddress.parse(f"http://127.0.0.1:{port}")
                await child.ready(f"{address.name}/-/ready")
                yield RealAlertmanager(address, address.name, recorder, woken)
            finally:
                await child.stop()
