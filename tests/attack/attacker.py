"""The attacker, in its own process so that it takes no time from the measuring one."""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from tests.server.otlp.bodies import CORPUS

HALF_OPEN: Final = 1_000
HALF_OPEN_ON: Final = ("half-open on the telemetry port", "half-open on the HTTP port")
HALF_REQUEST: Final = b"POST /v1/traces HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-"
HEADS: Final = {
    "endless header": (b"GET / HTTP/1.1\r\na: ", b"a", 50_000_000),
    "endless URL": (b"GET /", b"a", 50_000_000),
    "many headers": (b"GET / HTTP/1.1\r\n", b"a:\r\n", 20_000_000),
    "pipelined requests": (b"", b"GET /nothing HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 400_000),
}
"""The start of a request head, the repeated part, and the number of repeats."""
PATIENCE: Final = 120.0


def attack(name: str, url: str, otlp: str, ready: Any, go: Any, stopping: Any, words: Any) -> None:
    """Attack until the end, and return the service's responses."""
    address = urlsplit(url if name == HALF_OPEN_ON[1] else otlp)
    host, port = address.hostname or "", address.port or 0
    if name in CORPUS:
        body = CORPUS[name](1.0)
        headers, content = body.build_request()
        ready.set()
        go.wait()
        words.put(_send(host, port, body.path, headers, content, stopping))
        return
    if name in HEADS:
        start, part, times = HEADS[name]
        content = start + part * times
        ready.set()
        go.wait()
        words.put(_send_head(host, port, content, stopping))
        return
    ready.set()
    go.wait()
    if name == "none":
        words.put("")
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    connections: list[socket.socket] = []
    while not stopping.is_set():
        with contextlib.suppress(OSError):
            if len(connections) < HALF_OPEN:
                connections.append(socket.create_connection((host, port), timeout=5))
                connections[-1].sendall(HALF_REQUEST)
                continue
        stopping.wait(0.2)
    words.put(f"{len(connections)} opened")


def _send(host: str, port: int, path: str, headers: dict[str, str], content: bytes, stopping: Any) -> str:
    """Send a body repeatedly on three connections, until stopped."""
    answers: dict[str, int] = {}

    def send() -> None:
        while not stopping.is_set():
            try:
                client = http.client.HTTPConnection(host, port, timeout=PATIENCE)
                client.request("POST", path, content, headers)
                answer = str(client.getresponse().status)
                client.close()
            except OSError as error:
                answer = type(error).__name__
            answers[answer] = answers.get(answer, 0) + 1
            stopping.wait(0.5)

    pool = ThreadPoolExecutor(3)
    for _ in range(3):
        pool.submit(send)
    stopping.wait()
    time.sleep(1)
    return ", ".join(f"{count} x {answer}" for answer, count in sorted(answers.items()))


def _send_head(host: str, port: int, content: bytes, stopping: Any) -> str:
    """Send a head repeatedly, and sum up the bytes sent."""
    sent, times = 0, 0
    while not stopping.is_set():
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5) as client:
            times += 1
            for start in range(0, len(content), 65_536):
                client.sendall(content[start : start + 65_536])
                sent += len(content[start : start + 65_536])
        stopping.wait(0.5)
    return f"{times} x, {sent / 1e6:.1f} MB sent"
