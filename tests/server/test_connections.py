"""Idle connections do not block active ones, and the size of request heads is limited (B128)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets import auto

from queenright.server.middleware import connections
from queenright.server.middleware.connections import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    SLICE_BYTES,
    compute_connection_limit,
    raise_descriptor_limit,
)
from queenright.server.ops import sockets
from queenright.server.ops.sockets import listen, serve_app

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class App:
    """
    An app that responds immediately, except that ``/slow`` waits for ``may_respond``, and a POST for its
    body.
    """

    def __init__(self) -> None:
        self.may_respond = asyncio.Event()
        self.started = asyncio.Event()
        self.calls = 0
        self.body_bytes = 0

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        self.calls += 1
        if scope["path"] == "/slow":
            self.started.set()
            await self.may_respond.wait()
        while scope["method"] == "POST":
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            self.body_bytes += len(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def run_app() -> AsyncIterator[tuple[App, Callable[[bytes], Awaitable[Connection]]]]:
    """Serve the app on a free port. Yield the app and a function that opens a connection and sends bytes."""
    app, writers = App(), list[asyncio.StreamWriter]()
    with contextlib.closing(listen("127.0.0.1", 0, what="a test", option="none")) as sock:
        port = sock.getsockname()[1]

        async def connect(request_bytes: bytes) -> Connection:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(request_bytes)
            return reader, writer

        async with serve_app(app, sock):
            yield app, connect
            app.may_respond.set()
            for writer in writers:
                writer.close()


async def is_answered(connection: Connection) -> bool:
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            return b" 200 " in await connection[0].readline()
    return False


async def is_closed(connection: Connection) -> bool:
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            return await connection[0].read() == b""
    return True


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\nhost:", id="half of the headers"),
        pytest.param(b"\r\n", id="an empty line"),
        pytest.param(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf", id="half of a body"),
    ],
)
async def test_incomplete_request_is_closed_after_the_deadline(
    request_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEADERS_TIMEOUT_SECONDS", "BODY_TIMEOUT_SECONDS", "_SWEEP_SECONDS"):
        monkeypatch.setattr(connections, name, 0.05)
    async with run_app() as (_, connect):
        assert await is_closed(await connect(request_bytes))
        connection = await connect(REQUEST)
        assert await is_answered(connection)


async def test_slow_response_does_not_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADERS_TIMEOUT_SECONDS", "BODY_TIMEOUT_SECONDS", "_SWEEP_SECONDS"):
        monkeypatch.setattr(connections, name, 0.05)
    async with run_app() as (app, connect):
        slow_connection = await connect(REQUEST.replace(b"/ ", b"/slow "))
        await asyncio.wait_for(app.started.wait(), 60)
        assert await is_closed(await connect(b"GET"))
        assert await is_closed(await connect(b"GET"))
        app.may_respond.set()
        assert await is_answered(slow_connection)


async def test_full_port_closes_the_longest_idle_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "compute_connection_limit", lambda: 4)
    async with run_app() as (app, connect):
        active_connection = await connect(REQUEST.replace(b"/ ", b"/slow "))
        await asyncio.wait_for(app.started.wait(), 60)
        idle_connections = [await connect(b"GET") for _ in range(20)]
        for connection in idle_connections[:17]:
            assert await is_closed(connection)
        assert await is_answered(await connect(REQUEST))
        app.may_respond.set()
        assert await is_answered(active_connection)


async def test_port_with_only_active_connections_refuses_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "compute_connection_limit", lambda: 2)
    async with run_app() as (app, connect):
        active_connections = []
        for _ in range(2):
            app.started.clear()
            active_connections.append(await connect(REQUEST.replace(b"/ ", b"/slow ")))
            await asyncio.wait_for(app.started.wait(), 60)
        assert await is_closed(await connect(REQUEST))
        app.may_respond.set()
        assert [await is_answered(connection) for connection in active_connections] == [True, True]
        assert await is_answered(await connect(REQUEST))


async def test_connection_is_reused() -> None:
    async with run_app() as (_, connect):
        reader, writer = await connect(REQUEST)
        for _ in range(3):
            async with asyncio.timeout(60):
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.write(REQUEST)


CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
BODY_BYTES = 300_000

TOO_LARGE = [
    pytest.param(b"GET / HTTP/1.1\r\na: ", b"a" * 4_000_000, 431, id="endless header"),
    pytest.param(b"GET / HTTP/1.1\r\n", b"a" * 4_000_000, 431, id="endless name of a header"),
    pytest.param(b"GET /", b"a" * 4_000_000, 414, id="endless URL"),
    pytest.param(b"GET / HTTP/1.1\r\n", b"a:\r\n" * 1_000_000, 431, id="many headers"),
    pytest.param(
        REQUEST + b"GET / HTTP/1.1\r\na: ", b"a" * 4_000_000, 431, id="endless header of a second request"
    ),
    pytest.param(CHUNKED + b"0\r\na: ", b"a" * 4_000_000, 431, id="endless trailer"),
    pytest.param(CHUNKED + b"0\r\n", b"a:\r\n" * 1_000_000, 431, id="many trailers"),
    pytest.param(CHUNKED + b"1;", b"a" * 4_000_000, 431, id="endless chunk extension"),
    pytest.param(b"", b"\r\n" * 2_000_000, 431, id="endless empty lines"),
]


@pytest.mark.parametrize(("first_bytes", "endless_part", "_"), TOO_LARGE)
async def test_parser_reads_no_more_than_the_head_limit(
    first_bytes: bytes, endless_part: bytes, _: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed_sizes, parse = list[int](), HttpToolsProtocol.data_received

    def record_size(self: HttpToolsProtocol, data: bytes) -> None:
        parsed_sizes.append(len(data))
        parse(self, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", record_size)
    async with run_app() as (app, connect):
        connection = await connect(first_bytes + endless_part)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                while await connection[0].read(65_536):
                    pass
        assert max(parsed_sizes) <= SLICE_BYTES
        assert sum(parsed_sizes) <= len(first_bytes) + MAX_HEAD_BYTES + 2 * SLICE_BYTES
        assert app.calls <= 1
        assert await is_answered(await connect(REQUEST))


@pytest.mark.parametrize(("first_bytes", "endless_part", "status"), TOO_LARGE)
async def test_head_above_the_limit_is_rejected_with_the_reason(
    first_bytes: bytes, endless_part: bytes, status: int
) -> None:
    async with run_app() as (_, connect):
        reader, writer = await connect(b"")
        async with asyncio.timeout(60):
            if first_bytes.startswith(REQUEST):
                writer.write(REQUEST)
                await reader.readuntil(b"ok")
            writer.write(first_bytes.removeprefix(REQUEST) + endless_part[: MAX_HEAD_BYTES + SLICE_BYTES])
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"connection: close" in answer
        assert b"Send" in answer.partition(b"\r\n\r\n")[2]


async def test_pipelined_requests_beyond_the_limit_are_dropped() -> None:
    gc.collect()
    gc.disable()  # A closed connection must be freed without the garbage collector.

    def count_requests() -> int:
        return sum(isinstance(item, RequestResponseCycle) for item in gc.get_objects())

    try:
        count_before = count_requests()
        async with run_app() as (app, connect):
            connection = await connect(REQUEST.replace(b"/ ", b"/slow ") + REQUEST * 10_000)
            await asyncio.wait_for(app.started.wait(), 60)
            assert count_requests() - count_before <= MAX_PIPELINED + 1
            app.may_respond.set()
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionError):
                    while await connection[0].read(65_536):
                        pass
            assert app.calls <= MAX_PIPELINED + 1
            async with asyncio.timeout(60):
                while count_requests() > count_before:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_requests_of_a_pipeline_are_dropped_when_the_connection_breaks() -> None:
    gc.collect()
    gc.disable()

    def count_waiting() -> int:
        return sum(
            isinstance(item, RequestResponseCycle) and item.scope["path"] == "/" for item in gc.get_objects()
        )

    try:
        async with run_app() as (app, connect):
            _, writer = await connect(REQUEST.replace(b"/ ", b"/slow ") + REQUEST * MAX_PIPELINED)
            await asyncio.wait_for(app.started.wait(), 60)
            assert count_waiting() == MAX_PIPELINED
            writer.transport.abort()
            await asyncio.sleep(0)
            app.may_respond.set()
            async with asyncio.timeout(60):
                while count_waiting() > 1:  # noqa: ASYNC110  # the connection's error keeps the last one alive
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_last_response_of_a_long_pipeline_closes_the_connection() -> None:
    async with run_app() as (app, connect):
        reader, _ = await connect(REQUEST * (2 * MAX_PIPELINED))
        async with asyncio.timeout(60):
            answers = await reader.read()
    assert app.calls == answers.count(b"HTTP/1.1 200") == MAX_PIPELINED + 1
    assert answers.count(b"connection: close") == 1
    assert b"connection: close" in answers.rpartition(b"HTTP/1.1 200")[2]


async def test_bad_request_does_not_break_the_preceding_response() -> None:
    async with run_app() as (app, connect):
        reader, _ = await connect(REQUEST.replace(b"/ ", b"/slow ") + b"no request\r\n\r\n")
        await asyncio.wait_for(app.started.wait(), 60)
        app.may_respond.set()
        async with asyncio.timeout(60):
            answers = await reader.read()
    assert answers.startswith(b"HTTP/1.1 200")
    assert answers.endswith(b"ok")
    assert answers.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("valid_requests", [0, 1, 2])
async def test_bad_body_does_not_break_preceding_responses(valid_requests: int) -> None:
    """B128: the requests before the one with the invalid body are answered."""
    result = REQUEST.replace(b"/ ", b"/slow ") + REQUEST * valid_requests
    async with run_app() as (app, connect):
        reader, _ = await connect(result + CHUNKED + b"no chunk\r\n\r\n" + REQUEST)
        await asyncio.wait_for(app.started.wait(), 60)
        app.may_respond.set()
        async with asyncio.timeout(60):
            answers = await reader.read()
    assert answers.count(b"HTTP/1.1 200") == answers.count(b"HTTP/1.1") == app.calls == 1 + valid_requests
    assert answers.endswith(b"ok")


async def test_response_is_sent_although_the_body_that_follows_is_invalid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HEADERS_TIMEOUT_SECONDS", "BODY_TIMEOUT_SECONDS", "_SWEEP_SECONDS"):
        monkeypatch.setattr(connections, name, 0.05)
    async with run_app() as (app, connect):
        slow_connection = await connect(REQUEST.replace(b"/ ", b"/slow ") + CHUNKED + b"no chunk\r\n\r\n")
        await asyncio.wait_for(app.started.wait(), 60)
        assert await is_closed(await connect(b"GET"))
        assert await is_closed(await connect(b"GET"))
        app.may_respond.set()
        assert await is_answered(slow_connection)


async def test_data_after_a_refused_request_is_read_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B128: at most the limit is read, in addition to the reads in progress."""
    protocols, received_sizes = list[connections.GuardedProtocol](), list[int]()
    receive = connections.GuardedProtocol.data_received

    def record_size(self: connections.GuardedProtocol, data: bytes) -> None:
        protocols.append(self)
        received_sizes.append(len(data))
        receive(self, data)

    monkeypatch.setattr(connections.GuardedProtocol, "data_received", record_size)
    size = 64 * connections.MAX_DROPPED_BYTES
    async with run_app() as (app, connect):
        reader, writer = await connect(REQUEST.replace(b"/ ", b"/slow ") + b"no request\r\n\r\n")
        await asyncio.wait_for(app.started.wait(), 60)
        writer.write(b"x" * size)
        async with asyncio.timeout(60):
            while sum(received_sizes) < size and not protocols[-1].flow.read_paused:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert sum(received_sizes) < 4 * connections.MAX_DROPPED_BYTES
        app.may_respond.set()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                assert (await reader.read()).startswith(b"HTTP/1.1 200")


async def test_websocket_upgrade_request_is_answered_like_any_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B128: an installed WebSocket library does not take over the connection, and nothing is logged."""
    taken_over = list[object]()
    monkeypatch.setattr(auto, "AutoWebSocketsProtocol", lambda **_: taken_over.append(1))
    request_bytes = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    async with run_app() as (_, connect):
        reader, writer = await connect(request_bytes)
        for _ in range(2):
            async with asyncio.timeout(60):
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.write(request_bytes)
    assert not taken_over
    assert not caplog.records


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"GET / HTTP/1.1\r\nhost: x\r\ncookie: %s\r\n\r\n" % (b"c" * 8_192), id="cookie"),
        pytest.param(b"GET /?%s HTTP/1.1\r\nhost: x\r\n\r\n" % (b"q" * 8_192), id="URL"),
        pytest.param(
            b"GET / HTTP/1.1\r\n%s\r\n" % (b"a: b\r\n" * MAX_HEADERS), id="maximum number of headers"
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\na: %s\r\n\r\n" % (b"a" * (MAX_HEAD_BYTES - 23)), id="maximum size of the head"
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (BODY_BYTES, b"b" * BODY_BYTES), id="body"
        ),
        pytest.param(
            CHUNKED + b"%x\r\n%s\r\n0\r\na: b\r\n\r\n" % (BODY_BYTES, b"b" * BODY_BYTES), id="body in chunks"
        ),
        pytest.param(b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", id="upgrade"),
    ],
)
async def test_large_request_within_the_limits_is_answered_and_keeps_the_connection(
    request_bytes: bytes,
) -> None:
    async with run_app() as (app, connect):
        reader, writer = await connect(request_bytes)
        for _ in range(3):
            async with asyncio.timeout(60):
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.write(request_bytes)
        assert app.body_bytes in (0, 3 * BODY_BYTES, 4 * BODY_BYTES)


async def test_body_is_requested_with_status_100() -> None:
    async with run_app() as (app, connect):
        reader, writer = await connect(
            b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n"
        )
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            writer.write(b"body")
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        assert app.body_bytes == 4


def test_open_file_limit_is_raised_and_ports_use_at_most_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(1_024, 4_096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))

    raise_descriptor_limit()

    assert limits[-1] == (4_096, 4_096)
    assert 2 * compute_connection_limit() <= 4_096 // 2
