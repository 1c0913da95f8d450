"""The event stream of a real service, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType
from queenright.server.middleware.connections import GuardedProtocol
from queenright.server.routes.events import DEFAULT_TYPES
from queenright.server.serving import RunningService, serving
from queenright.server.settings import load_settings
from tests.server.streams import Follower
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

_EVENT_COUNT, _TEXT_LENGTH = 6000, 1000
"""Number of events and length of their texts: more than is buffered for a client that does not read."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningService]:
    settings = load_settings(
        storage=tmp_path_factory.mktemp("stream"),
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring={"enabled": False},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("queenright.server.app.MAX_STREAMS", 4)
        async with serving(settings) as running_service:
            yield running_service


def make_event(kind: EventType = EventType.EXECUTION_STARTED, agent: str = "bee", **data: Any) -> AgentEvent:
    return AgentEvent(type=kind, time=time.time(), agent_id=agent, session_id="s", data=data)


async def test_stream_has_only_the_requested_events(running: RunningService) -> None:
    await running.service.store.append([make_event(agent="team/wasp")])
    events = [make_event(kind, agent) for kind in EventType for agent in ("bee", "team/wasp")]
    async with (
        Follower(f"{running.url}/api/events") as default_stream,
        Follower(f"{running.url}/api/events?types=all&agent_id=bee") as bee_stream,
        Follower(
            f"{running.url}/api/agents/team%2Fwasp/events?types=nudge_sent,step_started&types=edge_traversed"
        ) as wasp_stream,
    ):
        await running.service.store.append(events)
        last_events = [
            make_event(EventType.EXECUTION_FAILED),
            make_event(EventType.EDGE_TRAVERSED, "team/wasp"),
        ]
        await running.service.store.append(last_events)
        events += last_events

        async def wait_for_ids(follower: Follower, ids: list[str]) -> None:
            await follower.until(lambda: len(follower.ids) >= len(ids), "all requested events have arrived")
            assert follower.ids == ids

        await wait_for_ids(default_stream, [item.id for item in events if item.type in DEFAULT_TYPES])
        await wait_for_ids(bee_stream, [item.id for item in events if item.agent_id == "bee"])
        wasp_types = {EventType.NUDGE_SENT, EventType.STEP_STARTED, EventType.EDGE_TRAVERSED}
        await wait_for_ids(
            wasp_stream,
            [item.id for item in events if item.agent_id == "team/wasp" and item.type in wasp_types],
        )
        first_event = bee_stream.events[0]
        assert (first_event.event, first_event.id) == (events[0].type, events[0].id)
        assert first_event.data == events[0].to_dict()
        assert default_stream.blocks[0].retry == "2000"


async def test_stream_of_an_unknown_worker_is_not_found(running: RunningService) -> None:
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        response = await http.get("/api/agents/nope/events")
        assert response.status_code == 404
        assert "no worker 'nope' is known" in response.json()["title"]

    async with Follower(f"{running.url}/api/events?types=all&agent_id=not-yet") as stream:
        await running.service.store.append([make_event(agent="not-yet")])
        await stream.until(lambda: stream.ids, "the first event arrives")


async def test_unknown_type_is_rejected_with_suggestions(running: RunningService) -> None:
    """B65: the response has status 400."""
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        for path in ("/api/events", "/api/agents/bee/events"):
            response = await http.get(path, params={"types": "nudge_sent,nudge_snt"})
            assert response.status_code == 400
            assert response.headers["content-type"] == "application/problem+json"
            title = response.json()["title"]
            assert "'nudge_snt'" in title
            assert "nudge_sent?" in title
            assert "worker_escalation_ticket" in title
        assert (await http.get("/api/events?types=")).status_code == 400
        removed_name = await http.get("/api/events?agent=bee")
        assert (removed_name.status_code, "agent_id" in removed_name.json()["title"]) == (400, True)


async def test_resumed_stream_misses_no_event(running: RunningService) -> None:
    """B64: with Last-Event-ID, no event is missed, even if the client disconnected before the first event."""
    service, url = running.service, f"{running.url}/api/events?types=all&agent_id=returns"
    async with Follower(url) as first_follower:
        pass
    assert first_follower.last_id is not None
    missed_events = [make_event(agent="returns", n=number) for number in range(3)]
    await service.store.append(missed_events)
    async with Follower(url, {"Last-Event-ID": first_follower.last_id}) as second_follower:
        await second_follower.until(lambda: len(second_follower.ids) == 3, "the missed events arrive")
        service.bus.fan_out(make_event(EventType.CLIENT_OUTPUT_DELTA, "returns", text="hm"))
        await second_follower.until(lambda: len(second_follower.events) == 4, "a text delta arrives")
        assert second_follower.events[-1].id is None
        assert second_follower.last_id == missed_events[-1].id
    # A browser repeats the original URL, and sends its position in the header.
    async with Follower(
        f"{url}&after={missed_events[0].id}", {"Last-Event-ID": missed_events[1].id}
    ) as third_follower:
        await third_follower.until(lambda: third_follower.ids, "the remaining events arrive")
        assert third_follower.ids == [missed_events[2].id]
    async with Follower(f"{url}&after={missed_events[0].id}") as follower:
        await follower.until(lambda: len(follower.ids) == 2, "the remaining events arrive")
    await until(lambda: service.feed.readers == 0, "the disconnected client is removed")
    assert not service.feed.recent


async def test_unknown_last_event_id_resets_the_stream(running: RunningService) -> None:
    await running.service.store.append([make_event()])
    async with Follower(f"{running.url}/api/events", {"Last-Event-ID": "of another service"}) as follower:
        await follower.until(lambda: follower.events, "the stream reports the reset")
        assert follower.events[0].event == "reset"
        assert "'of another service' is not in the log" in follower.events[0].data["reason"]
        new_event = make_event()
        await running.service.store.append([new_event])
        await follower.until(lambda: len(follower.ids) > 1, "the stream continues")
        assert follower.ids[1:] == [new_event.id]


async def test_streams_beyond_the_limit_are_refused(running: RunningService) -> None:
    url = f"{running.url}/api/events"
    async with Follower(url), Follower(url), Follower(url), Follower(url):
        async with httpx.AsyncClient(trust_env=False) as http:
            response = await http.get(url)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert "4 event streams are open" in response.json()["title"]
    await until(lambda: running.service.feed.readers == 0, "all clients have disconnected")


class SlowClient:
    """A client that reads only when the test asks for it."""

    def __init__(self, url: str) -> None:
        host, port = httpx.URL(url).host, httpx.URL(url).port
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((host, port))
        self.socket.sendall(b"GET /api/events?types=all&agent_id=busy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.socket.setblocking(False)
        self.received = b""
        self.has_ended = False

    def read_available(self) -> None:
        """Read the data that has arrived."""
        try:
            while not self.has_ended:
                chunk = self.socket.recv(1 << 20)
                self.received += chunk
                self.has_ended = not chunk
        except BlockingIOError:
            return
        except ConnectionResetError:
            self.has_ended = True

    def close(self) -> None:
        self.socket.close()

    @property
    def ids(self) -> list[str]:
        """Return the ids of the complete events that were received."""
        return re.findall(r"\nid: (\S+)\ndata: [^\n]*\n\n", self.received.decode(errors="replace"))


async def test_slow_client_gets_every_alert_or_is_disconnected_and_can_resume(
    running: RunningService,
) -> None:
    """B64: no event is skipped for a slow client. With Last-Event-ID, it gets all events."""
    url = f"{running.url}/api/events?types=all&agent_id=busy"
    kinds = sorted(ALERT_CLASS)
    events = [
        make_event(kinds[number % len(kinds)], "busy", n=number, text="x" * _TEXT_LENGTH)
        for number in range(_EVENT_COUNT)
    ]
    with (
        contextlib.closing(SlowClient(running.url)) as slow_client,
        contextlib.closing(SlowClient(running.url)) as stalled_client,
    ):
        await _publish_all(running, url, events, slow_client, stalled_client)


async def _publish_all(
    running: RunningService,
    url: str,
    events: list[AgentEvent],
    slow_client: SlowClient,
    stalled_client: SlowClient,
) -> None:
    service, ids = running.service, [event.id for event in events]
    async with Follower(url) as fast_client:
        await until(lambda: service.feed.readers == 3, "all three clients are connected")
        for offset in range(0, _EVENT_COUNT, 500):
            await service.store.append(events[offset : offset + 500])
        await fast_client.until(
            lambda: fast_client.text.count("\nid: ") >= _EVENT_COUNT, "the fast client has all events"
        )
        assert fast_client.ids == ids

    def has_received_all() -> bool:
        slow_client.read_available()
        return (
            len(slow_client.received) > _EVENT_COUNT * _TEXT_LENGTH and len(slow_client.ids) == _EVENT_COUNT
        )

    await until(has_received_all, "the slow client has all events once it reads")
    assert slow_client.ids == ids
    clock_time, clock = service.feed.clock(), service.feed.clock
    service.feed.clock = lambda: clock_time + 31
    try:
        service.feed.check_readers()
        await until(lambda: service.feed.readers == 1, "the client that does not read is disconnected")
    finally:
        service.feed.clock = clock

    def is_disconnected() -> bool:
        stalled_client.read_available()
        return stalled_client.has_ended

    await until(is_disconnected, "the connection is closed")
    assert 0 < len(stalled_client.ids) < _EVENT_COUNT
    async with Follower(url, {"Last-Event-ID": stalled_client.ids[-1]}) as resumed_client:
        remaining_count = _EVENT_COUNT - len(stalled_client.ids)
        await resumed_client.until(
            lambda: resumed_client.text.count("\nid: ") >= remaining_count,
            "the client has the remaining events",
        )
        assert stalled_client.ids + resumed_client.ids == ids


async def test_buffer_for_a_client_that_does_not_read_is_bounded(running: RunningService) -> None:
    feed = running.service.feed
    await until(lambda: feed.readers == 0, "all clients have disconnected")
    with contextlib.closing(SlowClient(running.url)):
        await until(lambda: feed.readers == 1, "the client is connected")
        [reader] = feed._readers
        for _ in range(16):
            await running.service.store.append(
                [make_event(agent="busy", text="x" * _TEXT_LENGTH) for _ in range(100)]
            )

        await until(lambda: reader.sending_since is not None, "the client counts as slow after 1.6 MB")
    await until(lambda: feed.readers == 0, "the client has disconnected")


async def test_streams_end_when_the_service_stops(tmp_path: Path) -> None:
    settings = load_settings(storage=tmp_path / "storage", http={"port": 0}, otlp={"port": 0})
    async with serving(settings) as running:
        follower = Follower(f"{running.url}/api/events")
        await follower.__aenter__()
    await follower.until(lambda: follower.has_ended, "the stream ends as a complete response")
    assert follower.blocks[-1].comment == "the service is stopping"


@pytest.mark.parametrize("is_sending", [True, False], ids=["while it sends", "with unsent data"])
async def test_client_that_does_not_receive_does_not_delay_the_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_sending: bool
) -> None:
    transports: list[asyncio.Transport] = []

    def connection_made(connection: GuardedProtocol, transport: asyncio.Transport) -> None:
        make(connection, transport)
        transports.append(transport)

    make = GuardedProtocol.connection_made
    monkeypatch.setattr(GuardedProtocol, "connection_made", connection_made)
    settings = load_settings(storage=tmp_path / "storage", http={"port": 0}, otlp={"port": 0})
    with contextlib.ExitStack() as stack:
        async with serving(settings) as running:
            feed = running.service.feed
            stack.enter_context(contextlib.closing(SlowClient(running.url)))
            await until(lambda: feed.readers == 1, "the client is connected")
            [reader], [transport] = feed._readers, transports
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

            def is_stalled() -> bool:
                return bool(reader.sending_since if is_sending else transport.get_write_buffer_size())

            while not is_stalled():
                events = [
                    make_event(EventType.STEP_COMPLETED, "busy", text="x" * _TEXT_LENGTH) for _ in range(20)
                ]
                await running.service.store.append(events)
                await until(lambda: is_stalled() or reader.place == feed.head.seq, "the stream sends")
    assert not [record.message for record in caplog.records if record.name == "uvicorn.error"]
