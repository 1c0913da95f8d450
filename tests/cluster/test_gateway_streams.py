"""The events of a fleet in three partitions form one stream, which can be resumed at any event."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from queenright.server.http.problems import make_problem_response
from queenright.server.middleware.connections import ABORT
from queenright.server.ops.sockets import listen, make_socket_url, serve_app
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
MAX_STEPS: Final = 12


def make_event(agent: str = "bee", kind: EventType = EventType.EXECUTION_STARTED, **data: Any) -> AgentEvent:
    return AgentEvent(type=kind, time=time.time(), agent_id=agent, session_id="s", data=data)


@dataclass
class Partitions:
    """Three services behind a gateway."""

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
    async with run_services(tmp_path_factory.mktemp("shared")) as services:
        yield services


@pytest_asyncio.fixture(loop_scope="module")
async def partitions(services: Sequence[Service]) -> AsyncIterator[Partitions]:
    async with put_gateway_before(services) as partitions:
        yield partitions


@pytest_asyncio.fixture(loop_scope="module")
async def new_partitions(tmp_path: Path) -> AsyncIterator[Partitions]:
    async with run_services(tmp_path) as services, put_gateway_before(services) as partitions:
        yield partitions


@contextlib.asynccontextmanager
async def run_services(folder: Path) -> AsyncIterator[Sequence[Service]]:
    async with contextlib.AsyncExitStack() as stack:
        services = []
        for number in range(PARTITIONS):
            service_settings = load_settings(
                storage=folder / str(number), health_monitoring={"enabled": False}
            )
            services.append(
                await stack.enter_async_context(run_service(service_settings, "http://127.0.0.1:4318"))
            )
        yield services


@contextlib.asynccontextmanager
async def put_gateway_before(services: Sequence[Service]) -> AsyncIterator[Partitions]:
    apps: list[ASGIApp | None] = [create_app(service, bind_address="127.0.0.1") for service in services]
    yield Partitions(services, apps, Gateway(lambda: apps, lambda agent_id, namespace="": 0, unowned_app))
    await until(lambda: not list_stream_tasks(), "no stream task is left")
    assert not any(service.feed.readers for service in services)


def list_stream_tasks() -> list[str]:
    """Return the names of the running stream tasks, which should end when their streams end."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return [
        coroutine.__qualname__
        for coroutine in coroutines
        if inspect.iscoroutine(coroutine)
        and coroutine.cr_code.co_filename in (streams.__file__, event_routes.__file__)
    ]


async def unowned_app(scope: Scope, receive: Receive, send: Send) -> None:
    await make_problem_response(503, "no process monitors the workers")(scope, receive, send)


@dataclass
class Client:
    """A client of an ASGI app without a network. It receives only while ``may_receive`` is set."""

    app: ASGIApp
    url: str
    resume_id: str | None = None
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
        await self.wait_until_over()

    async def wait_until_over(self) -> None:
        """Wait until the app has returned."""
        await asyncio.wait_for(self._task, 30)

    def disconnect(self) -> None:
        self._gone.set()

    def scope(self) -> Scope:
        path, _, query = self.url.partition("?")
        headers = [(b"host", b"127.0.0.1")]
        if self.resume_id is not None:
            headers.append((b"last-event-id", self.resume_id.encode()))
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
        """Return the ids of the logged events, as their data gives them."""
        return [block.data["id"] for block in self.blocks if block.data and "id" in block.data]

    @property
    def resets(self) -> list[str]:
        return [block.data["reason"] for block in self.blocks if block.event == "reset"]

    @property
    def last_id(self) -> str:
        return next(block.id for block in reversed(self.blocks) if block.id is not None)

    async def until(self, condition: Callable[[], object], description: str) -> None:
        await until(condition, description)

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
    """B64: every event appears once, in the order of its partition."""
    events_by_partition = [
        [make_event(f"bee-{number}", n=n) for n in range(5)] for number in range(PARTITIONS)
    ]
    async with partitions.follow() as client:
        for events_of_round in zip(*events_by_partition, strict=True):
            for service, event in zip(partitions.services, events_of_round, strict=True):
                await service.store.append([event])
        await client.until(lambda: len(client.events) == 15, "all events arrive")
        for number in range(PARTITIONS):
            ids = [event.id for event in events_by_partition[number]]
            assert [id_ for id_ in client.events if id_ in ids] == ids
        assert client.blocks[0].retry == "2000"
        assert [block.retry for block in client.blocks[1:]] == [""] * 15
    assert client.has_ended is False


async def test_stream_resumes_at_another_process_after_each_block(partitions: Partitions) -> None:
    """B64: wherever the connection breaks, no event is missing or repeated."""
    for number, service in enumerate(partitions.services):
        await service.store.append([make_event(f"early-{number}")])
    async with partitions.follow() as client:
        for turn in range(4):
            for number, service in enumerate(partitions.services):
                await service.store.append([make_event(f"bee-{number}", turn=turn)])
        await client.until(lambda: len(client.events) == 12, "all events arrive")
    other_gateway = Gateway(lambda: partitions.apps, lambda agent_id, namespace="": 0, unowned_app)
    for block_index, block in enumerate(client.blocks):
        assert block.id is not None
        async with Client(other_gateway, _URL, block.id) as resumed_client:
            remaining_ids = set(client.events[block_index:])
            await until(
                partial(has_all_events, resumed_client, len(remaining_ids)), "the remaining events arrive"
            )
            assert (set(resumed_client.events), len(resumed_client.events)) == (
                remaining_ids,
                len(remaining_ids),
            )
            assert not resumed_client.resets


def has_all_events(client: Client, count: int) -> bool:
    return len(client.events) >= count


async def test_stream_over_an_empty_log_resumes_at_its_beginning(new_partitions: Partitions) -> None:
    for service in new_partitions.services:
        assert service.feed.head.seq == 0
    async with new_partitions.follow() as client:
        first_id = client.last_id
    events = [make_event(f"bee-{number}") for number in range(PARTITIONS)]
    for service, event in zip(new_partitions.services, events, strict=True):
        await service.store.append([event])
    async with new_partitions.follow(last_id=first_id) as resumed_client:
        await resumed_client.until(
            lambda: len(resumed_client.events) == PARTITIONS, "the missed events arrive"
        )
        assert sorted(resumed_client.events) == sorted(event.id for event in events)
        assert not resumed_client.resets
    async with new_partitions.follow(f"{_URL}&after={first_id}") as other_client:
        await other_client.until(
            lambda: len(other_client.events) == PARTITIONS,
            "the missed events also arrive with the query parameter",
        )


async def test_id_of_one_event_resumes_its_partition_and_resets_the_others(partitions: Partitions) -> None:
    old_event, next_event = make_event("bee"), make_event("bee")
    await partitions.services[1].store.append([old_event, next_event])
    async with partitions.follow(last_id=old_event.id) as client:
        await client.until(lambda: len(client.resets) == PARTITIONS - 1, "two partitions report a reset")
        await client.until(lambda: client.events, "one partition continues")
        assert client.events == [next_event.id]
        await partitions.services[0].store.append([make_event("wasp")])
        await client.until(lambda: len(client.events) == 2, "the others continue")
        resumed_id = client.last_id
    async with partitions.follow(last_id=resumed_id) as resumed_client:
        assert not resumed_client.resets


@pytest.mark.parametrize("last_id", ["x" * 5000, "nobody", "WyJldmVudHMiLCJhIiwiYiJd"])
async def test_unknown_id_resets_the_stream(partitions: Partitions, last_id: str) -> None:
    """The last id is that of a stream of two partitions."""
    async with partitions.follow(last_id=last_id) as client:
        await client.until(lambda: len(client.resets) == PARTITIONS, "each partition reports the reset")
        assert client.status == 200


async def test_worker_that_moves_to_another_partition_is_followed_there(partitions: Partitions) -> None:
    old_event, moved_event = make_event("team/bee"), make_event("team/bee")
    await partitions.services[1].store.append([old_event])
    url = "/api/agents/team/bee/events?types=all"
    async with partitions.follow(url) as client:
        await partitions.services[2].store.append([make_event("wasp"), moved_event])
        await client.until(lambda: client.events, "the event arrives")
        assert client.events == [moved_event.id]
        resumed_id = client.last_id
    later_event = make_event("team/bee")
    await partitions.services[0].store.append([later_event])
    async with partitions.follow(url, resumed_id) as resumed_client:
        await resumed_client.until(lambda: resumed_client.events, "the event arrives")
        assert resumed_client.events == [later_event.id]


async def test_stream_of_an_unknown_worker_is_not_found(partitions: Partitions) -> None:
    async with partitions.follow("/api/agents/nope/events") as client:
        await client.wait_until_over()
        assert (client.status, client.has_ended) == (404, True)
        assert "no worker 'nope' is known" in client.text


async def test_partition_that_refuses_a_stream_refuses_it_for_all(partitions: Partitions) -> None:
    partitions.apps[1] = unowned_app
    for url, status in ((_URL, 503), ("/api/events?types=nudge_snt", 400)):
        async with partitions.follow(url) as client:
            await client.wait_until_over()
            assert client.status in (status, 503)
    partitions.apps[1] = None
    async with partitions.follow() as client:
        await client.wait_until_over()
        assert client.status == 503


async def test_stream_ends_with_the_first_partition_that_ends(new_partitions: Partitions) -> None:
    async with new_partitions.follow() as client:
        await until(lambda: new_partitions.readers == PARTITIONS, "all partitions are read")
        new_partitions.services[2].feed.close()
        await client.wait_until_over()
        assert client.has_ended
        assert client.blocks[-1].comment == "the service is stopping"
        assert not client.is_aborted


async def test_broken_partition_ends_the_stream(partitions: Partitions) -> None:
    async def fail_at_once(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"retry: 2000\nid: a\n\n", "more_body": True})
        await is_receiving.wait()
        raise httpx.ReadError("the owner has ended")

    is_receiving = asyncio.Event()
    partitions.apps[1] = fail_at_once
    client = Client(partitions.gateway, _URL)
    await client.__aenter__()
    is_receiving.set()
    with pytest.raises(httpx.ReadError):
        await client.wait_until_over()
    assert not client.has_ended


async def test_partition_that_fails_before_the_start_fails_the_request(partitions: Partitions) -> None:
    async def fail_at_once(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("a mistake")

    partitions.apps[1] = fail_at_once
    client = Client(partitions.gateway, _URL)
    await client.__aenter__()
    with pytest.raises(RuntimeError, match="a mistake"):
        await client.wait_until_over()


async def test_client_that_disconnects_before_the_stream_starts_leaves_no_task(
    partitions: Partitions,
) -> None:
    async def hang_until_cancelled(scope: Scope, receive: Receive, send: Send) -> None:
        is_asked.set()
        await asyncio.Event().wait()

    is_asked = asyncio.Event()
    partitions.apps[1] = hang_until_cancelled
    client = Client(partitions.gateway, _URL)
    entering_task = asyncio.create_task(client.__aenter__())
    await is_asked.wait()
    client.disconnect()
    await entering_task
    await client.wait_until_over()
    assert client.status == 0


async def test_no_event_has_an_id_before_all_partitions_have_started(partitions: Partitions) -> None:
    """Such an id would lack the position in one partition, so a resumed stream would miss its events."""

    async def start_late(scope: Scope, receive: Receive, send: Send) -> None:
        await may_begin.wait()
        assert late_app is not None
        await late_app(scope, receive, send)

    may_begin, late_app = asyncio.Event(), partitions.apps[2]
    partitions.apps[2] = start_late
    client = Client(partitions.gateway, _URL)
    entering_task = asyncio.create_task(client.__aenter__())
    await until(lambda: partitions.readers == 2, "two partitions have started")
    first_event = make_event("bee")
    await partitions.services[0].store.append([first_event])
    may_begin.set()
    await entering_task
    await client.until(lambda: client.events == [first_event.id], "the event arrives")
    client.disconnect()
    await client.wait_until_over()
    missed_event = make_event("wasp")
    await partitions.services[2].store.append([missed_event])
    async with partitions.follow(last_id=client.blocks[0].id) as resumed_client:
        await resumed_client.until(lambda: len(resumed_client.events) == 2, "both events arrive")
        assert set(resumed_client.events) == {first_event.id, missed_event.id}


async def test_slow_client_pauses_the_partitions_and_misses_no_event(partitions: Partitions) -> None:
    events_by_partition = [
        [make_event(f"bee-{number}", text="x" * 2000) for _ in range(150)] for number in range(PARTITIONS)
    ]
    async with partitions.follow() as client:
        client.may_receive.clear()
        await send_all(partitions, events_by_partition)
        await until(lambda: "data: " in client.text, "the first piece is sent")
        await until(lambda: is_paused(partitions), "the partitions wait")
        size = len(client.text)
        assert size < 3 * 65_536
        client.may_receive.set()
        await client.until(lambda: len(client.events) == 450, "all events arrive")
        assert client.events != sorted(client.events)
        for events in events_by_partition:
            ids = [event.id for event in events]
            assert [id_ for id_ in client.events if id_ in set(ids)] == ids


async def send_all(partitions: Partitions, events_by_partition: Sequence[Sequence[AgentEvent]]) -> None:
    for service, events in zip(partitions.services, events_by_partition, strict=True):
        await service.store.append(list(events))


def is_paused(partitions: Partitions) -> bool:
    return all(
        reader.sending_since is not None
        for service in partitions.services
        for reader in service.feed._readers
    )


async def test_disconnected_slow_client_leaves_no_task(partitions: Partitions) -> None:
    async with partitions.follow() as client:
        client.may_receive.clear()
        await send_all(partitions, [[make_event(text="x" * 2000) for _ in range(150)]] * PARTITIONS)
        await until(lambda: is_paused(partitions), "the partitions wait")
        client.disconnect()
        await client.wait_until_over()
    assert not client.is_aborted


async def test_client_that_stops_receiving_is_disconnected(partitions: Partitions) -> None:
    def stream_with_short_stall_limit(scope: Scope, receive: Receive, send: Send) -> Any:
        apps = [app for app in partitions.apps if app is not None]
        return stream_events(apps, scope, receive, send, stall_seconds=0.2)

    async with Client(stream_with_short_stall_limit, _URL) as client:
        client.may_receive.clear()
        await partitions.services[0].store.append([make_event()])
        await client.wait_until_over()
        assert client.is_aborted


async def test_client_that_a_partition_reports_as_stalled_is_disconnected(new_partitions: Partitions) -> None:
    async with new_partitions.follow() as client:
        client.may_receive.clear()
        await new_partitions.services[0].store.append([make_event()])
        await until(lambda: "data: " in client.text, "the event is sent")
        feed = new_partitions.services[0].feed
        stalled_since = feed.clock()
        feed.clock = lambda: stalled_since + 31
        feed.check_readers()
        await client.wait_until_over()
        assert client.is_aborted


async def test_keep_alives_of_silent_partitions_are_combined(partitions: Partitions) -> None:
    now = 1000.0

    def stream_with_clock(scope: Scope, receive: Receive, send: Send) -> Any:
        apps = [app for app in partitions.apps if app is not None]
        return stream_events(apps, scope, receive, send, clock=lambda: now)

    for service in partitions.services:
        await service.store.append([make_event()])
    async with Client(stream_with_clock, _URL) as client:
        for _ in range(3):
            now += 15
            count = len(client.blocks)
            for service in partitions.services:
                for reader in service.feed._readers:
                    reader.request_keep_alive()
            await client.until(lambda count=count: len(client.blocks) > count, "a keep-alive arrives")  # type: ignore[misc]  # mypy cannot infer a lambda's default
            await until(
                lambda: all(
                    reader.is_waiting for service in partitions.services for reader in service.feed._readers
                ),
                "all partitions have sent a keep-alive",
            )
            assert [block.event for block in client.blocks[count:]] == ["alive"]
            assert client.blocks[-1].id is not None


async def test_partition_that_ends_its_response_ends_the_stream(partitions: Partitions) -> None:
    async def end_at_once(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"retry: 2000\nid: a\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    partitions.apps[0] = end_at_once
    async with partitions.follow() as client:
        await client.wait_until_over()
        assert client.has_ended


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_blocks_may_be_split_anywhere(size: int) -> None:
    """A proxy forwards whatever bytes it has received, not complete blocks."""
    body = b"retry: 2000\nid: a\n\nevent: x\nid: b\ndata: 1\n\n: c\n\nevent: y\ndata: 2\n\n"

    async def send_in_pieces(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for offset in range(0, len(body), size):
            piece = body[offset : offset + size]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def merged_app(scope: Scope, receive: Receive, send: Send) -> None:
        await stream_events([send_in_pieces], scope, receive, send)

    async with Client(merged_app, _URL) as client:
        await client.wait_until_over()
    assert [(block.event, block.data, block.comment) for block in client.blocks] == [
        ("message", None, ""),
        ("x", 1, ""),
        ("message", None, "c"),
        ("y", 2, ""),
    ]
    assert client.blocks[1].id != client.blocks[0].id


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1)),
        st.just(("break", 0)),
        st.just(("receive", 0)),
    ),
    min_size=1,
    max_size=MAX_STEPS,
)


@settings(max_examples=25)
@given(steps=STEPS)
async def test_disconnects_at_any_time_lose_and_repeat_no_event(
    services: Sequence[Service], steps: list[tuple[str, int]]
) -> None:
    async with put_gateway_before(services) as partitions:
        sent_ids: list[str] = []
        received_ids: list[str] = []
        clients = [await partitions.follow().__aenter__()]

        def has_all() -> bool:
            return len(received_ids) + len(clients[-1].events) >= len(sent_ids)

        for step, number in [*steps, ("receive", 0)]:
            match step:
                case "append":
                    event = make_event(f"bee-{number}")
                    await partitions.services[number].store.append([event])
                    sent_ids.append(event.id)
                case "receive":
                    await until(has_all, "the event arrives")
                case "break":
                    await clients[-1].__aexit__()
                    received_ids.extend(clients[-1].events)
                    clients.append(await partitions.follow(last_id=clients[-1].last_id).__aenter__())
        await clients[-1].__aexit__()
        received_ids.extend(clients[-1].events)
        assert sorted(received_ids) == sorted(sent_ids)


async def test_stream_over_sockets_ends_when_its_client_disconnects(partitions: Partitions) -> None:
    sock = listen("127.0.0.1", 0, what="the API", option="--port")
    url = make_socket_url(sock)
    async with serve_app(partitions.gateway, sock):
        async with Follower(f"{url}{_URL}") as follower:
            await partitions.services[0].store.append([make_event("busy")])
            await follower.until(lambda: follower.events, "the event arrives")
        await until(lambda: partitions.readers == 0, "the disconnected client is removed")
        with contextlib.closing(SlowClient(url)) as slow_client:
            await until(lambda: partitions.readers == PARTITIONS, "all partitions are read")
            while not is_paused(partitions):
                events = [make_event("busy", text="x" * 1000) for _ in range(500)]
                await send_all(partitions, [events] * PARTITIONS)
                await asyncio.sleep(0)
            slow_client.socket.close()
            await until(lambda: partitions.readers == 0, "the disconnected client is removed")
