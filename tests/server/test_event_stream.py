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

_MANY, _LONG = 6000, 1000
"""More than kernel and service keep for who does not read."""


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
        async with serving(settings) as found:
            yield found


def event(kind: EventType = EventType.EXECUTION_STARTED, agent: str = "bee", **data: Any) -> AgentEvent:
    return AgentEvent(type=kind, time=time.time(), agent_id=agent, session_id="s", data=data)


async def test_stream_has_only_the_requested_events(running: RunningService) -> None:
    await running.service.store.append([event(agent="team/wasp")])
    events = [event(kind, agent) for kind in EventType for agent in ("bee", "team/wasp")]
    async with (
        Follower(f"{running.url}/api/events") as usual,
        Follower(f"{running.url}/api/events?types=all&agent_id=bee") as bees,
        Follower(
            f"{running.url}/api/agents/team%2Fwasp/events?types=nudge_sent,step_started&types=edge_traversed"
        ) as wasps,
    ):
        await running.service.store.append(events)
        end = [event(EventType.EXECUTION_FAILED), event(EventType.EDGE_TRAVERSED, "team/wasp")]
        await running.service.store.append(end)
        events += end

        async def had(follower: Follower, ids: list[str]) -> None:
            await follower.until(lambda: len(follower.ids) >= len(ids), "everything asked for came")
            assert follower.ids == ids

        await had(usual, [one.id for one in events if one.type in DEFAULT_TYPES])
        await had(bees, [one.id for one in events if one.agent_id == "bee"])
        few = {EventType.NUDGE_SENT, EventType.STEP_STARTED, EventType.EDGE_TRAVERSED}
        await had(wasps, [one.id for one in events if one.agent_id == "team/wasp" and one.type in few])
        first = bees.events[0]
        assert (first.event, first.id) == (events[0].type, events[0].id)
        assert first.data == events[0].to_dict()
        assert usual.blocks[0].retry == "2000"


async def test_stream_of_an_unknown_worker_is_not_found(running: RunningService) -> None:
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        answer = await http.get("/api/agents/nope/events")
        assert answer.status_code == 404
        assert "no worker 'nope' is known" in answer.json()["title"]

    async with Follower(f"{running.url}/api/events?types=all&agent_id=not-yet") as early:
        await running.service.store.append([event(agent="not-yet")])
        await early.until(lambda: early.ids, "the first of it comes")


async def test_unknown_type_is_rejected_with_suggestions(running: RunningService) -> None:
    """B65: an unknown type is a 400."""
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        for path in ("/api/events", "/api/agents/bee/events"):
            answer = await http.get(path, params={"types": "nudge_sent,nudge_snt"})
            assert answer.status_code == 400
            assert answer.headers["content-type"] == "application/problem+json"
            title = answer.json()["title"]
            assert "'nudge_snt'" in title
            assert "nudge_sent?" in title
            assert "worker_escalation_ticket" in title
        assert (await http.get("/api/events?types=")).status_code == 400
        former = await http.get("/api/events?agent=bee")
        assert (former.status_code, "agent_id" in former.json()["title"]) == (400, True)


async def test_resumed_stream_misses_no_event(running: RunningService) -> None:
    """B64: with Last-Event-ID nothing is missed, also by who was gone before the first event."""
    service, url = running.service, f"{running.url}/api/events?types=all&agent_id=returns"
    async with Follower(url) as first:
        pass
    assert first.last_id is not None
    before = [event(agent="returns", n=n) for n in range(3)]
    await service.store.append(before)
    async with Follower(url, {"Last-Event-ID": first.last_id}) as second:
        await second.until(lambda: len(second.ids) == 3, "what was missed comes")
        service.bus.fan_out(event(EventType.CLIENT_OUTPUT_DELTA, "returns", text="hm"))
        await second.until(lambda: len(second.events) == 4, "a piece of text comes")
        assert second.events[-1].id is None
        assert second.last_id == before[-1].id
    # A browser repeats the address as it was, and says in the header where it is.
    async with Follower(f"{url}&after={before[0].id}", {"Last-Event-ID": before[1].id}) as third:
        await third.until(lambda: third.ids, "the rest comes")
        assert third.ids == [before[2].id]
    async with Follower(f"{url}&after={before[0].id}") as fourth:
        await fourth.until(lambda: len(fourth.ids) == 2, "the rest comes")
    await until(lambda: service.feed.readers == 0, "who has gone is forgotten")
    assert not service.feed.recent


async def test_unknown_last_event_id_resets_the_stream(running: RunningService) -> None:
    await running.service.store.append([event()])
    async with Follower(f"{running.url}/api/events", {"Last-Event-ID": "of another service"}) as follower:
        await follower.until(lambda: follower.events, "the stream says so")
        assert follower.events[0].event == "reset"
        assert "'of another service' is not in the log" in follower.events[0].data["reason"]
        new = event()
        await running.service.store.append([new])
        await follower.until(lambda: len(follower.ids) > 1, "it goes on")
        assert follower.ids[1:] == [new.id]


async def test_more_streams_than_are_allowed_are_refused(running: RunningService) -> None:
    url = f"{running.url}/api/events"
    async with Follower(url), Follower(url), Follower(url), Follower(url):
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(url)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "there are 4 event streams" in answer.json()["title"]
    await until(lambda: running.service.feed.readers == 0, "all have gone")


class Deaf:
    """A client that reads only when told to."""

    def __init__(self, url: str) -> None:
        host, port = httpx.URL(url).host, httpx.URL(url).port
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((host, port))
        self.socket.sendall(b"GET /api/events?types=all&agent_id=busy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.socket.setblocking(False)
        self.read = b""
        self.ended = False

    def listen(self) -> None:
        """Read what is there."""
        try:
            while not self.ended:
                part = self.socket.recv(1 << 20)
                self.read += part
                self.ended = not part
        except BlockingIOError:
            return
        except ConnectionResetError:
            self.ended = True

    def close(self) -> None:
        self.socket.close()

    @property
    def ids(self) -> list[str]:
        """Ids of the events that came whole."""
        return re.findall(r"\nid: (\S+)\ndata: [^\n]*\n\n", self.read.decode(errors="replace"))


async def test_slow_client_gets_every_alert_or_is_disconnected_and_resumes(
    running: RunningService,
) -> None:
    """B64: a slow client is never silently skipped; with Last-Event-ID it misses nothing."""
    url = f"{running.url}/api/events?types=all&agent_id=busy"
    kinds = sorted(ALERT_CLASS)
    events = [event(kinds[n % len(kinds)], "busy", n=n, text="x" * _LONG) for n in range(_MANY)]
    with contextlib.closing(Deaf(running.url)) as slow, contextlib.closing(Deaf(running.url)) as lost:
        await _tell_all(running, url, events, slow, lost)


async def _tell_all(
    running: RunningService, url: str, events: list[AgentEvent], slow: Deaf, lost: Deaf
) -> None:
    service, ids = running.service, [one.id for one in events]
    async with Follower(url) as fast:
        await until(lambda: service.feed.readers == 3, "all three read")
        for start in range(0, _MANY, 500):
            await service.store.append(events[start : start + 500])
        await fast.until(lambda: fast.text.count("\nid: ") >= _MANY, "the fast one has everything meanwhile")
        assert fast.ids == ids

    def hears() -> bool:
        slow.listen()
        return len(slow.read) > _MANY * _LONG and len(slow.ids) == _MANY

    await until(hears, "the slow one has everything as soon as it reads")
    assert slow.ids == ids
    now, clock = service.feed.clock(), service.feed.clock
    service.feed.clock = lambda: now + 31
    try:
        service.feed.check_readers()
        await until(lambda: service.feed.readers == 1, "who takes nothing is cut off")
    finally:
        service.feed.clock = clock

    def broken_off() -> bool:
        lost.listen()
        return lost.ended

    await until(broken_off, "its connection is broken off")
    assert 0 < len(lost.ids) < _MANY
    async with Follower(url, {"Last-Event-ID": lost.ids[-1]}) as again:
        rest = _MANY - len(lost.ids)
        await again.until(lambda: again.text.count("\nid: ") >= rest, "it has the rest")
        assert lost.ids + again.ids == ids


async def test_little_is_kept_for_a_client_that_does_not_read(running: RunningService) -> None:
    feed = running.service.feed
    await until(lambda: feed.readers == 0, "all have gone")
    with contextlib.closing(Deaf(running.url)):
        await until(lambda: feed.readers == 1, "it reads")
        [reader] = feed._readers
        for _ in range(16):
            await running.service.store.append([event(agent="busy", text="x" * _LONG) for _ in range(100)])

        await until(lambda: reader.sending_since is not None, "it is known to be slow after 1.6 MB")
    await until(lambda: feed.readers == 0, "it has gone")


async def test_streams_end_when_the_service_stops(tmp_path: Path) -> None:
    settings = load_settings(storage=tmp_path / "storage", http={"port": 0}, otlp={"port": 0})
    async with serving(settings) as running:
        follower = Follower(f"{running.url}/api/events")
        await follower.__aenter__()
    await follower.until(lambda: follower.ended, "the stream ends as a whole answer")
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
            stack.enter_context(contextlib.closing(Deaf(running.url)))
            await until(lambda: feed.readers == 1, "it reads")
            [reader], [transport] = feed._readers, transports
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

            def is_stalled() -> bool:
                return bool(reader.sending_since if is_sending else transport.get_write_buffer_size())

            while not is_stalled():
                events = [event(EventType.STEP_COMPLETED, "busy", text="x" * _LONG) for _ in range(20)]
                await running.service.store.append(events)
                await until(lambda: is_stalled() or reader.place == feed.head.seq, "it sends")
    assert not [record.message for record in caplog.records if record.name == "uvicorn.error"]
