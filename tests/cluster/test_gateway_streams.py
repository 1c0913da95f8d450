"""The events of a fleet in three partitions are one stream, which can resume at any event."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.app import create_app
from queenright.server.cluster.gateway import streams
from queenright.server.cluster.gateway.gateway import Gateway
from queenright.server.cluster.gateway.streams import stream_events
from queenright.server.http.problems import problem
from queenright.server.middleware.connections import ABORT
from queenright.server.ops.sockets import listen, serve_app, socket_url
from queenright.server.routes import events as event_routes
from queenright.server.service import Service
from queenright.server.serving import run_service
from queenright.server.settings import load_settings
from tests.server.streams import Block, Follower, parse_blocks
from tests.server.test_event_stream import SlowClient
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARTITIONS: Final = 3
_URL: Final = "/api/events?types=all"
_MOST: Final = 12


def event(agent: str = "bee", kind: EventType = EventType.EXECUTION_STARTED, **data: Any) -> AgentEvent:
    return AgentEvent(type=kind, time=time.time(), agent_id=agent, session_id="s", data=data)


@dataclass
class Partitions:
    """Three services, and a gateway before them."""

    services: Sequence[Service]
    apps: list[ASGIApp | None]
    gateway: ASGIApp

    @property
    def readers(self) -> int:
        return sum(service.feed.readers for service in self.services)

    def follow(self, url: str = _URL, last_id: str | None = None) -> Client:
        return Client(self.gateway, url, last_id)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sequence[Service]]:
    async with running_services(tmp_path_factory.mktemp("shared")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def partitions(services: Sequence[Service]) -> AsyncIterator[Partitions]:
    async with before_services(services) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def new_partitions(tmp_path: Path) -> AsyncIterator[Partitions]:
    async with running_services(tmp_path) as services, before_services(services) as found:
        yield found


@contextlib.asynccontextmanager
async def running_services(folder: Path) -> AsyncIterator[Sequence[Service]]:
    async with contextlib.AsyncExitStack() as stack:
        services = []
        for number in range(PARTITIONS):
            chosen = load_settings(storage=folder / str(number), health_monitoring={"enabled": False})
            services.append(await stack.enter_async_context(run_service(chosen, "http://127.0.0.1:4318")))
        yield services


@contextlib.asynccontextmanager
async def before_services(services: Sequence[Service]) -> AsyncIterator[Partitions]:
    apps: list[ASGIApp | None] = [create_app(service, bind_address="127.0.0.1") for service in services]
    yield Partitions(services, apps, Gateway(lambda: apps, lambda agent_id, namespace="": 0, unowned))
    await until(lambda: not stream_tasks(), "no task is left")
    assert not any(service.feed.readers for service in services)


def stream_tasks() -> list[str]:
    """Return the tasks of streams, which should end with them."""
    running = [task.get_coro() for task in asyncio.all_tasks()]
    return [
        coroutine.__qualname__
        for coroutine in running
        if inspect.iscoroutine(coroutine)
        and coroutine.cr_code.co_filename in (streams.__file__, event_routes.__file__)
    ]


async def unowned(scope: Scope, receive: Receive, send: Send) -> None:
    await problem(503, "no process watches the workers")(scope, receive, send)


@dataclass
class Client:
    """A client of an ASGI app, without a network: it receives when it may."""

    app: ASGIApp
    url: str
    last: str | None = None
    status: int = 0
    text: str = ""
    has_ended: bool = False
    may_receive: asyncio.Event = field(default_factory=asyncio.Event)
    is_aborted: bool = False

    async def __aenter__(self) -> Self:
        self.may_receive.set()
        self._gone = asyncio.Event()
        self._task = asyncio.create_task(self._call())
        await until(lambda: "\n\n" in self.text or self._task.done(), "the stream has started")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.disconnect()
        await self.wait_over()

    async def wait_over(self) -> None:
        """Wait until the app has returned."""
        await asyncio.wait_for(self._task, 30)

    def disconnect(self) -> None:
        self._gone.set()

    def scope(self) -> Scope:
        path, _, query = self.url.partition("?")
        headers = [(b"host", b"127.0.0.1")]
        if self.last is not None:
            headers.append((b"last-event-id", self.last.encode()))
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8420),
            "extensions": {ABORT: self._abort},
        }

    @property
    def is_over(self) -> bool:
        return self._task.done()

    @property
    def blocks(self) -> list[Block]:
        return parse_blocks(self.text)

    @property
    def events(self) -> list[str]:
        """Return the ids of the logged events, from their data."""
        return [block.data["id"] for block in self.blocks if block.data and "id" in block.data]

    @property
    def resets(self) -> list[str]:
        return [block.data["reason"] for block in self.blocks if block.event == "reset"]

    @property
    def last_id(self) -> str:
        return next(block.id for block in reversed(self.blocks) if block.id is not None)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await until(condition, what)

    async def _call(self) -> None:
        await self.app(self.scope(), self._receive, self._send)

    def _abort(self) -> None:
        self.is_aborted = True
        self._gone.set()

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.text += message.get("body", b"").decode()
        self.has_ended = not message.get("more_body", False)
        await self.may_receive.wait()


async def test_events_of_all_partitions_are_one_stream(partitions: Partitions) -> None:
    """B64: every event appears once, in its partition's order."""
    sent = [[event(f"bee-{number}", n=n) for n in range(5)] for number in range(PARTITIONS)]
    async with partitions.follow() as client:
        for parts in zip(*sent, strict=True):
            for service, one in zip(partitions.services, parts, strict=True):
                await service.store.append([one])
        await client.until(lambda: len(client.events) == 15, "all come")
        for number in range(PARTITIONS):
            ids = [one.id for one in sent[number]]
            assert [id_ for id_ in client.events if id_ in ids] == ids
        assert client.blocks[0].retry == "2000"
        assert [block.retry for block in client.blocks[1:]] == [""] * 15
    assert client.has_ended is False


async def test_stream_resumes_at_another_process_after_each_block(partitions: Partitions) -> None:
    """B64: wherever the connection breaks, no event is missing or repeated."""
    for number, service in enumerate(partitions.services):
        await service.store.append([event(f"early-{number}")])
    async with partitions.follow() as client:
        for turn in range(4):
            for number, service in enumerate(partitions.services):
                await service.store.append([event(f"bee-{number}", turn=turn)])
        await client.until(lambda: len(client.events) == 12, "all come")
    other = Gateway(lambda: partitions.apps, lambda agent_id, namespace="": 0, unowned)
    for place, block in enumerate(client.blocks):
        assert block.id is not None
        async with Client(other, _URL, block.id) as resumed:
            rest = set(client.events[place:])
            # mypy cannot infer a lambda's defaults.
            await until(lambda r=resumed, rest=rest: len(r.events) >= len(rest), "the rest arrives")  # type: ignore[misc]
            assert (set(resumed.events), len(resumed.events)) == (rest, len(rest))
            assert not resumed.resets


async def test_stream_over_an_empty_log_resumes_at_its_beginning(new_partitions: Partitions) -> None:
    for service in new_partitions.services:
        assert service.feed.head.seq == 0
    async with new_partitions.follow() as client:
        first_id = client.last_id
    sent = [event(f"bee-{number}") for number in range(PARTITIONS)]
    for service, one in zip(new_partitions.services, sent, strict=True):
        await service.store.append([one])
    async with new_partitions.follow(last_id=first_id) as resumed:
        await resumed.until(lambda: len(resumed.events) == PARTITIONS, "the missed events arrive")
        assert sorted(resumed.events) == sorted(one.id for one in sent)
        assert not resumed.resets
    async with new_partitions.follow(f"{_URL}&after={first_id}") as same:
        await same.until(lambda: len(same.events) == PARTITIONS, "they also arrive with the parameter")


async def test_id_of_one_event_resumes_its_partition_and_resets_the_others(partitions: Partitions) -> None:
    known, following = event("bee"), event("bee")
    await partitions.services[1].store.append([known, following])
    async with partitions.follow(last_id=known.id) as client:
        await client.until(lambda: len(client.resets) == PARTITIONS - 1, "two partitions report a reset")
        await client.until(lambda: client.events, "one partition continues")
        assert client.events == [following.id]
        await partitions.services[0].store.append([event("wasp")])
        await client.until(lambda: len(client.events) == 2, "the others continue")
        resumed_id = client.last_id
    async with partitions.follow(last_id=resumed_id) as resumed:
        assert not resumed.resets


@pytest.mark.parametrize("last_id", ["x" * 5000, "nobody", "WyJldmVudHMiLCJhIiwiYiJd"])
async def test_unknown_id_resets_the_stream(partitions: Partitions, last_id: str) -> None:
    """The last one is the id of a stream of two partitions."""
    async with partitions.follow(last_id=last_id) as client:
        await client.until(lambda: len(client.resets) == PARTITIONS, "each partition reports the reset")
        assert client.status == 200


async def test_worker_that_moves_to_another_partition_is_followed_there(partitions: Partitions) -> None:
    known, moved = event("team/bee"), event("team/bee")
    await partitions.services[1].store.append([known])
    url = "/api/agents/team/bee/events?types=all"
    async with partitions.follow(url) as client:
        await partitions.services[2].store.append([event("wasp"), moved])
        await client.until(lambda: client.events, "it comes")
        assert client.events == [moved.id]
        resumed_id = client.last_id
    later = event("team/bee")
    await partitions.services[0].store.append([later])
    async with partitions.follow(url, resumed_id) as resumed:
        await resumed.until(lambda: resumed.events, "it comes")
        assert resumed.events == [later.id]


async def test_stream_of_an_unknown_worker_is_not_found(partitions: Partitions) -> None:
    async with partitions.follow("/api/agents/nope/events") as client:
        await client.wait_over()
        assert (client.status, client.has_ended) == (404, True)
        assert "no worker 'nope' is known" in client.text


async def test_refusal_by_a_partition_refuses_the_stream(partitions: Partitions) -> None:
    partitions.apps[1] = unowned
    for url, status in ((_URL, 503), ("/api/events?types=nudge_snt", 400)):
        async with partitions.follow(url) as client:
            await client.wait_over()
            assert client.status in (status, 503)
    partitions.apps[1] = None
    async with partitions.follow() as client:
        await client.wait_over()
        assert client.status == 503


async def test_stream_ends_with_the_first_partition_that_ends(new_partitions: Partitions) -> None:
    async with new_partitions.follow() as client:
        await until(lambda: new_partitions.readers == PARTITIONS, "all partitions are read")
        new_partitions.services[2].feed.close()
        await client.wait_over()
        assert client.has_ended
        assert client.blocks[-1].comment == "the service is stopping"
        assert not client.is_aborted


async def test_broken_partition_ends_the_stream(partitions: Partitions) -> None:
    async def fail_at_once(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"retry: 2000\nid: a\n\n", "more_body": True})
        await receiving.wait()
        raise httpx.ReadError("the owner has ended")

    receiving = asyncio.Event()
    partitions.apps[1] = fail_at_once
    client = Client(partitions.gateway, _URL)
    await client.__aenter__()
    receiving.set()
    with pytest.raises(httpx.ReadError):
        await client.wait_over()
    assert not client.has_ended


async def test_partition_that_fails_before_the_start_fails_the_request(partitions: Partitions) -> None:
    async def fail_at_once(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("a mistake")

    partitions.apps[1] = fail_at_once
    client = Client(partitions.gateway, _URL)
    await client.__aenter__()
    with pytest.raises(RuntimeError, match="a mistake"):
        await client.wait_over()


async def test_client_that_disconnects_before_the_stream_starts_leaves_no_task(
    partitions: Partitions,
) -> None:
    async def hang(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await asyncio.Event().wait()

    asked = asyncio.Event()
    partitions.apps[1] = hang
    client = Client(partitions.gateway, _URL)
    entering = asyncio.create_task(client.__aenter__())
    await asked.wait()
    client.disconnect()
    await entering
    await client.wait_over()
    assert client.status == 0


async def test_no_event_has_an_id_before_all_partitions_have_started(partitions: Partitions) -> None:
    """Such an id would lack the position in one partition, and a resumed stream would miss its events."""

    async def start_late(scope: Scope, receive: Receive, send: Send) -> None:
        await may_begin.wait()
        assert late is not None
        await late(scope, receive, send)

    may_begin, late = asyncio.Event(), partitions.apps[2]
    partitions.apps[2] = start_late
    client = Client(partitions.gateway, _URL)
    entering = asyncio.create_task(client.__aenter__())
    await until(lambda: partitions.readers == 2, "two partitions have started")
    first = event("bee")
    await partitions.services[0].store.append([first])
    may_begin.set()
    await entering
    await client.until(lambda: client.events == [first.id], "it comes")
    client.disconnect()
    await client.wait_over()
    missed = event("wasp")
    await partitions.services[2].store.append([missed])
    async with partitions.follow(last_id=client.blocks[0].id) as resumed:
        await resumed.until(lambda: len(resumed.events) == 2, "both come")
        assert set(resumed.events) == {first.id, missed.id}


async def test_slow_client_pauses_the_partitions_and_misses_nothing(partitions: Partitions) -> None:
    sent = [[event(f"bee-{number}", text="x" * 2000) for _ in range(150)] for number in range(PARTITIONS)]
    async with partitions.follow() as client:
        client.may_receive.clear()
        await send_all(partitions, sent)
        await until(lambda: "data: " in client.text, "the first piece is sent")
        await until(lambda: is_paused(partitions), "the others wait")
        size = len(client.text)
        assert size < 3 * 65_536
        client.may_receive.set()
        await client.until(lambda: len(client.events) == 450, "all come")
        assert client.events != sorted(client.events)
        for part in sent:
            ids = [one.id for one in part]
            assert [id_ for id_ in client.events if id_ in set(ids)] == ids


async def send_all(partitions: Partitions, sent: Sequence[Sequence[AgentEvent]]) -> None:
    for service, events in zip(partitions.services, sent, strict=True):
        await service.store.append(list(events))


def is_paused(partitions: Partitions) -> bool:
    return all(
        reader.sending_since is not None
        for service in partitions.services
        for reader in service.feed._readers
    )


async def test_slow_client_that_disconnects_leaves_nothing(partitions: Partitions) -> None:
    async with partitions.follow() as client:
        client.may_receive.clear()
        await send_all(partitions, [[event(text="x" * 2000) for _ in range(150)]] * PARTITIONS)
        await until(lambda: is_paused(partitions), "all wait")
        client.disconnect()
        await client.wait_over()
    assert not client.is_aborted


async def test_client_that_stops_receiving_is_disconnected(partitions: Partitions) -> None:
    def impatient_gateway(scope: Scope, receive: Receive, send: Send) -> Any:
        apps = [app for app in partitions.apps if app is not None]
        return stream_events(apps, scope, receive, send, stall_seconds=0.2)

    async with Client(impatient_gateway, _URL) as client:
        client.may_receive.clear()
        await partitions.services[0].store.append([event()])
        await client.wait_over()
        assert client.is_aborted


async def test_client_that_a_partition_finds_stalled_is_disconnected(new_partitions: Partitions) -> None:
    async with new_partitions.follow() as client:
        client.may_receive.clear()
        await new_partitions.services[0].store.append([event()])
        await until(lambda: "data: " in client.text, "the event is sent")
        feed = new_partitions.services[0].feed
        now = feed.clock()
        feed.clock = lambda: now + 31
        feed.check_readers()
        await client.wait_over()
        assert client.is_aborted


async def test_keep_alives_of_silent_partitions_are_combined(partitions: Partitions) -> None:
    now = 1000.0

    def at_a_time(scope: Scope, receive: Receive, send: Send) -> Any:
        apps = [app for app in partitions.apps if app is not None]
        return stream_events(apps, scope, receive, send, clock=lambda: now)

    for service in partitions.services:
        await service.store.append([event()])
    async with Client(at_a_time, _URL) as client:
        for _ in range(3):
            now += 15
            count = len(client.blocks)
            for service in partitions.services:
                for reader in service.feed._readers:
                    reader.request_keep_alive()
            await client.until(lambda count=count: len(client.blocks) > count, "one comes")  # type: ignore[misc]
            await until(
                lambda: all(
                    reader.is_waiting for service in partitions.services for reader in service.feed._readers
                ),
                "all partitions have sent a keep-alive",
            )
            assert [block.event for block in client.blocks[count:]] == ["alive"]
            assert client.blocks[-1].id is not None


async def test_revoked_part_ends_the_stream(partitions: Partitions) -> None:
    async def end_at_once(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"retry: 2000\nid: a\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    partitions.apps[0] = end_at_once
    async with partitions.follow() as client:
        await client.wait_over()
        assert client.has_ended


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_pieces_may_be_cut_anywhere(size: int) -> None:
    """A proxy forwards what it receives, not complete blocks."""
    text = b"retry: 2000\nid: a\n\nevent: x\nid: b\ndata: 1\n\n: c\n\nevent: y\ndata: 2\n\n"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def merged_app(scope: Scope, receive: Receive, send: Send) -> None:
        await stream_events([app], scope, receive, send)

    async with Client(merged_app, _URL) as client:
        await client.wait_over()
    assert [(block.event, block.data, block.comment) for block in client.blocks] == [
        ("message", None, ""),
        ("x", 1, ""),
        ("message", None, "c"),
        ("y", 2, ""),
    ]
    assert client.blocks[1].id != client.blocks[0].id


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1)),
        st.just(("break", 0)),
        st.just(("receive", 0)),
    ),
    min_size=1,
    max_size=_MOST,
)


@settings(max_examples=25)
@given(steps=_STEPS)
async def test_breaks_at_any_time_lose_and_repeat_nothing(
    services: Sequence[Service], steps: list[tuple[str, int]]
) -> None:
    async with before_services(services) as partitions:
        sent: list[str] = []
        received: list[str] = []
        clients = [await partitions.follow().__aenter__()]

        def has_all() -> bool:
            return len(received) + len(clients[-1].events) >= len(sent)

        for step, number in [*steps, ("receive", 0)]:
            match step:
                case "append":
                    one = event(f"bee-{number}")
                    await partitions.services[number].store.append([one])
                    sent.append(one.id)
                case "receive":
                    await until(has_all, "it comes")
                case "break":
                    await clients[-1].__aexit__()
                    received.extend(clients[-1].events)
                    clients.append(await partitions.follow(last_id=clients[-1].last_id).__aenter__())
        await clients[-1].__aexit__()
        received.extend(clients[-1].events)
        assert sorted(received) == sorted(sent)


async def test_stream_over_sockets_ends_with_its_client(partitions: Partitions) -> None:
    sock = listen("127.0.0.1", 0, what="the API", option="--port")
    url = socket_url(sock)
    async with serve_app(partitions.gateway, sock):
        async with Follower(f"{url}{_URL}") as follower:
            await partitions.services[0].store.append([event("busy")])
            await follower.until(lambda: follower.events, "it comes")
        await until(lambda: partitions.readers == 0, "the disconnected client is removed")
        with contextlib.closing(SlowClient(url)) as slow_client:
            await until(lambda: partitions.readers == PARTITIONS, "it reads")
            while not is_paused(partitions):
                events = [event("busy", text="x" * 1000) for _ in range(500)]
                await send_all(partitions, [events] * PARTITIONS)
                await asyncio.sleep(0)
            slow_client.socket.close()
            await until(lambda: partitions.readers == 0, "the disconnected client is removed")
