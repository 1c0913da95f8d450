"""A process with few file descriptors keeps some in reserve, and recovers after it had none left (B128)."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.isolation import ROOT, environment

DESCRIPTORS: Final = 64
CONNECTIONS: Final = 150

Ports = tuple[int, int]


@pytest.fixture
def ports() -> Iterator[Ports]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as peer:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.few_descriptors", str(DESCRIPTORS), _read_port(peer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
        try:
            assert process.stdout is not None
            api_port, otlp_port = process.stdout.readline().split()
            yield int(api_port), int(otlp_port)
            assert process.poll() is None
        finally:
            process.kill()
            process.communicate()


def _read_port(sock: socket.socket) -> str:
    return str(sock.getsockname()[1])


def send_command(client: http.client.HTTPConnection, command: str) -> Any:
    client.request("GET", command)
    return json.loads(client.getresponse().read())


def retry_command(port: int, command: str) -> Any:
    """Send a command on a new connection, and repeat it while the connection breaks."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
            try:
                return send_command(client, command)
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise
        time.sleep(0.05)


@contextlib.contextmanager
def open_idle_connections(ports: Ports) -> Iterator[None]:
    """Open connections that send no request, and keep them open."""
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            for port in ports:
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                with contextlib.suppress(OSError):
                    sock.sendall(b"POST / HTTP/1.1\r\nhost:")
        yield


def test_half_open_connections_leave_descriptors_for_the_outbox(ports: Ports) -> None:
    """B128: connections are opened on both ports concurrently, with 64 descriptors in total."""
    with open_idle_connections(ports):
        for port in ports:
            assert retry_command(port, "/deliver") == "delivered"


def test_process_without_descriptors_uses_little_cpu_time_and_recovers(ports: Ports) -> None:
    """B128: this holds regardless of what uses the descriptors."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", ports[0], timeout=60)) as client:
        assert send_command(client, "/exhaust") == "EMFILE"
        with open_idle_connections(ports):
            start_time, cpu_before = time.monotonic(), send_command(client, "/time")
            while time.monotonic() - start_time < 2:
                time.sleep(0.5)
                cpu_used = send_command(client, "/time") - cpu_before

            assert cpu_used < 1
        send_command(client, "/release")

        for port in ports:
            assert retry_command(port, "/deliver") == "delivered"
