"""Connections that ask nothing hold no place from those that do (B128)."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from queenright.server import connections, sockets
from queenright.server.connections import connection_limit, raise_descriptor_limit
from queenright.server.sockets import listen, listening

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

ASK = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class App:
    """Answers at once; ``/slow`` when it is told to, and a POST once its body is there."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.started = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["path"] == "/slow":
            self.started.set()
            await self.go_on.wait()
        while scope["method"] == "POST":
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[App, Callable[[bytes], Awaitable[Connection]]]]:
    """Serve the app on a free port; yield what opens a connection and says something on it."""
    app, writers = App(), list[asyncio.StreamWriter]()
    with contextlib.closing(listen("127.0.0.1", 0, what="a test", option="none")) as sock:
        port = sock.getsockname()[1]

        async def connect(words: bytes) -> Connection:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(words)
            return reader, writer

        async with listening(app, sock):
            yield app, connect
            app.go_on.set()
            for writer in writers:
                writer.close()


async def answered(connection: Connection) -> bool:
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            return b" 200 " in await connection[0].readline()
    return False


async def gone(connection: Connection) -> bool:
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            return await connection[0].read() == b""
    return True


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\nhost:", id="half of the headers"),
        pytest.param(b"\r\n", id="an empty line"),
        pytest.param(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf", id="half of a body"),
    ],
)
async def test_a_request_that_does_not_arrive_loses_its_connection(
    words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEADERS_SECONDS", "BODY_SECONDS", "_SWEEP_SECONDS"):
        monkeypatch.setattr(connections, name, 0.05)
    async with served() as (_, connect):
        assert await gone(await connect(words))
        connection = await connect(ASK)
        assert await answered(connection)


async def test_an_answer_may_take_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADERS_SECONDS", "BODY_SECONDS", "_SWEEP_SECONDS"):
        monkeypatch.setattr(connections, name, 0.05)
    async with served() as (app, connect):
        waiting = await connect(ASK.replace(b"/ ", b"/slow "))
        await asyncio.wait_for(app.started.wait(), 60)
        assert await gone(await connect(b"GET"))
        assert await gone(await connect(b"GET"))
        app.go_on.set()
        assert await answered(waiting)


async def test_a_full_port_gives_up_who_waited_longest_and_nobody_who_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "connection_limit", lambda: 4)
    async with served() as (app, connect):
        asking = await connect(ASK.replace(b"/ ", b"/slow "))
        await asyncio.wait_for(app.started.wait(), 60)
        idle = [await connect(b"GET") for _ in range(20)]
        for connection in idle[:17]:
            assert await gone(connection)
        assert await answered(await connect(ASK))
        app.go_on.set()
        assert await answered(asking)


async def test_a_port_whose_connections_are_all_served_refuses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "connection_limit", lambda: 2)
    async with served() as (app, connect):
        served_now = []
        for _ in range(2):
            app.started.clear()
            served_now.append(await connect(ASK.replace(b"/ ", b"/slow ")))
            await asyncio.wait_for(app.started.wait(), 60)
        assert await gone(await connect(ASK))
        app.go_on.set()
        assert [await answered(one) for one in served_now] == [True, True]
        assert await answered(await connect(ASK))


async def test_a_connection_is_used_again_and_again() -> None:
    async with served() as (_, connect):
        reader, writer = await connect(ASK)
        for _ in range(3):
            async with asyncio.timeout(60):
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.write(ASK)


def test_the_limit_of_open_files_is_raised_and_ports_have_half_of_it_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(1_024, 4_096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))

    raise_descriptor_limit()

    assert limits[-1] == (4_096, 4_096)
    assert 2 * connection_limit() <= 4_096 // 2
