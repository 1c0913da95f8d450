"""The attacker, which runs in its own process so that it does not delay the measurement."""

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

HALF_OPEN_CONNECTIONS: Final = 1_000
HALF_OPEN_ATTACKS: Final = ("half-open on the telemetry port", "half-open on the HTTP port")
HALF_REQUEST: Final = b"POST /v1/traces HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-"
REQUEST_HEADS: Final = {
    "endless header": (b"GET / HTTP/1.1\r\na: ", b"a", 50_000_000),
    "endless URL": (b"GET /", b"a", 50_000_000),
    "many headers": (b"GET / HTTP/1.1\r\n", b"a:\r\n", 20_000_000),
    "pipelined requests": (b"", b"GET /nothing HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 400_000),
}
"""The start of a request head, the repeated part, and the number of repeats."""
RESPONSE_TIMEOUT_SECONDS: Final = 120.0


def attack(name: str, url: str, otlp: str, ready: Any, may_start: Any, stopping: Any, results: Any) -> None:
    """Attack until ``stopping`` is set, and put a summary of the service's responses into ``results``."""
    address = urlsplit(url if name == HALF_OPEN_ATTACKS[1] else otlp)
    host, port = address.hostname or "", address.port or 0
    if name in CORPUS:
        body = CORPUS[name](1.0)
        headers, content = body.build_request()
        ready.set()
        may_start.wait()
        results.put(_send_body(host, port, body.path, headers, content, stopping))
        return
    if name in REQUEST_HEADS:
        prefix, part, times = REQUEST_HEADS[name]
        content = prefix + part * times
        ready.set()
        may_start.wait()
        results.put(_send_head(host, port, content, stopping))
        return
    ready.set()
    may_start.wait()
    if name == "none":
        results.put("")
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    connections: list[socket.socket] = []
    while not stopping.is_set():
        with contextlib.suppress(OSError):
            if len(connections) < HALF_OPEN_CONNECTIONS:
                connections.append(socket.create_connection((host, port), timeout=5))
                connections[-1].sendall(HALF_REQUEST)
                continue
        stopping.wait(0.2)
    results.put(f"{len(connections)} opened")


def _send_body(
    host: str, port: int, path: str, headers: dict[str, str], content: bytes, stopping: Any
) -> str:
    """Send a body repeatedly on three connections until stopped, and return the count of each outcome."""
    counts: dict[str, int] = {}

    def send() -> None:
        while not stopping.is_set():
            try:
                client = http.client.HTTPConnection(host, port, timeout=RESPONSE_TIMEOUT_SECONDS)
                client.request("POST", path, content, headers)
                outcome = str(client.getresponse().status)
                client.close()
            except OSError as error:
                outcome = type(error).__name__
            counts[outcome] = counts.get(outcome, 0) + 1
            stopping.wait(0.5)

    pool = ThreadPoolExecutor(3)
    for _ in range(3):
        pool.submit(send)
    stopping.wait()
    time.sleep(1)
    return ", ".join(f"{count} x {outcome}" for outcome, count in sorted(counts.items()))


def _send_head(host: str, port: int, content: bytes, stopping: Any) -> str:
    """Send a request head repeatedly until stopped, and return the number of times and the bytes sent."""
    sent_bytes, times = 0, 0
    while not stopping.is_set():
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5) as client:
            times += 1
            for start in range(0, len(content), 65_536):
                client.sendall(content[start : start + 65_536])
                sent_bytes += len(content[start : start + 65_536])
        stopping.wait(0.5)
    return f"{times} x, {sent_bytes / 1e6:.1f} MB sent"
