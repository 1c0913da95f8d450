from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys

import pytest
from starlette.types import Receive, Scope, Send

from queenright.instrumentation.errors import QueenrightError
from queenright.server.ops.sockets import PortInUseError, find_free_port, listen, serve_app
from tests.ports import reserve_port


def test_port_in_use_is_named_with_a_remedy() -> None:
    with contextlib.closing(listen("127.0.0.1", 0, what="a test", option="--port")) as listener:
        port = listener.getsockname()[1]

        with pytest.raises(
            PortInUseError, match=rf"Port {port} on 127\.0\.0\.1, for the API, is in use.*--port"
        ):
            listen("127.0.0.1", port, what="the API", option="--port")


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(QueenrightError, match=r"Cannot listen on 192\.0\.2\.1:0 for the API: .*another port"):
        listen("192.0.2.1", 0, what="the API", option="--host")


def test_child_port_is_not_ephemeral() -> None:
    port = find_free_port("127.0.0.1", 0, what="Alertmanager", option="")
    wildcard_port = listen("127.0.0.1", 0, what="anything", option="")
    with contextlib.closing(wildcard_port):
        assert port < 32768 <= wildcard_port.getsockname()[1]


def test_port_in_use_is_reported_before_a_program_starts() -> None:
    with contextlib.closing(listen("127.0.0.1", 0, what="anything", option="")) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"Port {port} .* for Alertmanager"):
            find_free_port("127.0.0.1", port, what="Alertmanager", option="--alertmanager-port")


@pytest.mark.skipif(sys.platform != "linux", reason="ports are reserved only on Linux")
def test_free_port_skips_a_bound_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program may start to listen on the port."""
    with reserve_port() as used_port:
        pass
    with reserve_port() as reserved_port:
        monkeypatch.setattr(random, "sample", lambda *_: [reserved_port, used_port])

        assert find_free_port("127.0.0.1", 0, what="Alertmanager", option="") == used_port


@pytest.mark.skipif(sys.platform != "linux", reason="ports are reserved only on Linux")
def test_reserved_port_can_be_listened_on_repeatedly(port: int) -> None:
    for _ in range(2):
        with contextlib.closing(listen("127.0.0.1", port, what="a child", option="")):
            pass


@pytest.mark.parametrize(("is_answered", "line"), [(True, None), (False, "Cancel 1 running task(s)")])
async def test_shutdown_logs_only_requests_that_it_cancels(
    is_answered: bool, line: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that reads nothing keeps its connection open in both cases."""
    is_called = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_called.set()
        if is_answered:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x" * 8_000_000})
        else:
            await asyncio.Event().wait()

    sock = listen("127.0.0.1", 0, what="a test", option="--port")
    with contextlib.closing(sock), contextlib.closing(socket.create_connection(sock.getsockname())) as client:
        async with serve_app(app, sock):
            client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            await is_called.wait()

    lines = [record.getMessage() for record in caplog.records if record.name == "uvicorn.error"]
    assert [log_line.split(",")[0] for log_line in lines if log_line.startswith("Cancel")] == (
        [line] if line else []
    )
