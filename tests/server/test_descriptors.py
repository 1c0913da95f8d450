"""A process with few file descriptors reserves some and continues without any (B128)."""

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
            [sys.executable, "-m", "tests.server.few_descriptors", str(DESCRIPTORS), _port(peer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
        try:
            assert process.stdout is not None
            one, other = process.stdout.readline().split()
            yield int(one), int(other)
            assert process.poll() is None
        finally:
            process.kill()
            process.communicate()


def _port(sock: socket.socket) -> str:
    return str(sock.getsockname()[1])


def ask(client: http.client.HTTPConnection, command: str) -> Any:
    client.request("GET", command)
    return json.loads(client.getresponse().read())


def ask_again(port: int, command: str) -> Any:
    """Ask on a connection of its own, and again as long as it is broken off."""
    until = time.monotonic() + 60
    while True:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
            try:
                return ask(client, command)
            except (OSError, http.client.HTTPException):
                if time.monotonic() > until:
                    raise
        time.sleep(0.05)


@contextlib.contextmanager
def half_open(ports: Ports) -> Iterator[None]:
    """Hold connections that have asked nothing yet."""
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            for port in ports:
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                with contextlib.suppress(OSError):
                    sock.sendall(b"POST / HTTP/1.1\r\nhost:")
        yield


def test_half_open_connections_leave_descriptors_to_the_outbox(ports: Ports) -> None:
    """B128: on both ports at once, with 64 descriptors in all."""
    with half_open(ports):
        for port in ports:
            assert ask_again(port, "/deliver") == "delivered"


def test_process_without_descriptors_does_not_spin_and_continues(ports: Ports) -> None:
    """B128: regardless of what took them."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", ports[0], timeout=60)) as client:
        assert ask(client, "/exhaust") == "EMFILE"
        with half_open(ports):
            began, before = time.monotonic(), ask(client, "/time")
            while time.monotonic() - began < 2:
                time.sleep(0.5)
                used = ask(client, "/time") - before

            assert used < 1
        ask(client, "/release")

        for port in ports:
            assert ask_again(port, "/deliver") == "delivered"
