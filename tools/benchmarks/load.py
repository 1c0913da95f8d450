"""
A service under load: 1,000 workers, telemetry, 200 event streams, 500 requests a second, for a minute.

The service is a process of its own (``queenright serve``), and so are the clients of the streams and those
who ask. Requests are sent when they are due, whether those before were answered or not, and a request's time
is counted from when it was due: who has to wait for a connection waits for the service. ``LOAD_SECONDS``,
``LOAD_RATE``, ``LOAD_STREAMS`` and ``LOAD_WORKERS`` change the numbers.

The first ``WARM_UP`` seconds count for nothing but the streams: a service that has just been started makes
its routes and its queries when they are first used.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import multiprocessing
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import uvloop
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from queenright.health.store.event_log import read_events
from queenright.health.store.store import Store
from queenright.server.ops.sockets import find_free_port
from tools.benchmarks.otlp import _span
from tools.benchmarks.row import Row
from tools.benchmarks.start import process_time

SECONDS: Final = float(os.environ.get("LOAD_SECONDS", "60"))
RATE: Final = int(os.environ.get("LOAD_RATE", "500"))
STREAMS: Final = int(os.environ.get("LOAD_STREAMS", "200"))
WORKERS: Final = int(os.environ.get("LOAD_WORKERS", "1000"))
EVENTS: Final = 100
"""Spans that come in each second; each is an event of the log."""
CONNECTIONS: Final = 64
WARM_UP: Final = 5.0
BUDGET: Final = 0.050

_MIX: Final = {
    "/api/agents/{agent}/health": 47.95,
    "/healthz": 12,
    "/api/agents?limit=100": 10,
    "/api/tickets": 10,
    "/readyz": 7,
    "/api/agents/{agent}/history": 5,
    "/api/breakers": 5,
    "/api/status": 2,
    "/api/interventions": 1,
    "/metrics": 0.05,
}
"""
What is asked for, in percent: programs that look at one worker, a dozen consoles and terminals that look at
all, probes, and a scrape every four seconds.
"""

_ID: Final = re.compile(rb"\nid: ([^\n]+)\ndata: ")
_PLACE: Final = re.compile(rb"\nid: ([^\n]+)\n\n")
_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class StreamEnd(NamedTuple):
    """What one stream had: after which event it began, how many came, which last, and a hash of all ids."""

    after: str
    events: int
    last: str
    digest: str


def run() -> list[Row]:
    """Measure, and compare what every stream had with the log."""
    with tempfile.TemporaryDirectory() as folder:
        return _Load(Path(folder)).run()


class _Load:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._otlp = (
            find_free_port("127.0.0.1", 0, what="the service", option="port") for _ in range(2)
        )
        self._spans = itertools.count()

    def run(self) -> list[Row]:
        command = ["serve", f"--storage={self._folder}", f"--port={self._port}", f"--otlp-port={self._otlp}"]
        service = subprocess.Popen([Path(sys.executable).with_name("queenright"), *command])
        try:
            self._ready()
            return self._measure(service.pid)
        finally:
            service.terminate()
            service.wait()

    def _ready(self) -> None:
        for _ in range(300):
            try:
                if httpx.get(f"http://127.0.0.1:{self._port}/readyz", trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
        with httpx.Client(trust_env=False) as http:
            for _ in range(6 * WORKERS // 300):
                self._send(http, 300)

    def _send(self, http: httpx.Client, count: int) -> None:
        request = ExportTraceServiceRequest()
        spans = [_span(next(self._spans), WORKERS) for _ in range(count)]
        request.resource_spans.add().scope_spans.add().spans.extend(spans)
        http.post(
            f"http://127.0.0.1:{self._otlp}/v1/traces",
            content=request.SerializeToString(),
            headers={"content-type": "application/x-protobuf"},
        ).raise_for_status()

    def _measure(self, pid: int) -> list[Row]:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        followers = spawn.Process(target=_follow_all, args=(self._port, theirs))
        followers.start()
        ours.recv()
        pipe, asking = spawn.Pipe()
        clients = spawn.Process(target=_ask_all, args=(self._port, asking))
        clients.start()
        before, began = 0.0, time.monotonic()
        warm = False
        with httpx.Client(trust_env=False) as http:
            for tick in itertools.count(1):
                self._send(http, EVENTS // 10)
                if not warm and time.monotonic() - began > WARM_UP:
                    warm, before = True, process_time(pid)
                if time.monotonic() - began > WARM_UP + SECONDS:
                    break
                time.sleep(max(0.0, began + tick / 10 - time.monotonic()))
        times: dict[str, list[float]] = pipe.recv()
        clients.join()
        cpu_seconds, took = process_time(pid) - before, time.monotonic() - began - WARM_UP
        log = self._log_at_rest()
        ours.send(log[-1])
        streams: list[StreamEnd] = ours.recv()
        followers.join()
        return [*_of_requests(times), _of_streams(streams, log), _of_service(cpu_seconds, took)]

    def _log_at_rest(self) -> list[str]:
        """Return the ids of the whole log, once nothing is added to it any more."""
        log: list[str] = []
        while True:
            store = Store.open(f"sqlite:///{self._folder / 'queenright.db'}", read_only=True)
            ids = [event.id for _, event in store.read_now(lambda conn: read_events(conn, limit=10**7))]
            store.close_now()
            if ids == log:
                return log
            log = ids
            time.sleep(2)


def _of_requests(times: dict[str, list[float]]) -> list[Row]:
    rows = [_row(f"GET {kind}", some) for kind, some in sorted(times.items())]
    everything = [one for some in times.values() for one in some]
    return [*rows, _row(f"all of {RATE} requests/s for {SECONDS:.0f} s, {WORKERS:,} workers", everything)]


def _row(name: str, times: list[float]) -> Row:
    p99 = statistics.quantiles(times, n=100)[98]
    text = (
        f"p50 {statistics.median(times) * 1e3:.1f}, p99 {p99 * 1e3:.1f}, max {max(times) * 1e3:.0f} ms "
        f"({len(times):,})"
    )
    return Row(name, text, f"p99 <= {BUDGET * 1e3:.0f} ms", p99 <= BUDGET)


def _of_streams(streams: list[StreamEnd], log: list[str]) -> Row:
    place = {event_id: number for number, event_id in enumerate(log, start=1)}
    whole = 0
    for one in streams:
        log_part = log[place[one.after] :]
        digest = hashlib.sha256("".join(log_part).encode()).hexdigest()
        whole += (one.events, one.digest) == (len(log_part), digest)
    events = max((stream.events for stream in streams), default=0)
    text = f"{whole} of {len(streams)} had all of some {events:,} events once and in order"
    return Row(f"{STREAMS} event streams", text, "all", whole == STREAMS == len(streams))


def _of_service(cpu_seconds: float, took: float) -> Row:
    # On a machine with other work it is this that says what a service costs.
    return Row("CPU of the service", f"{cpu_seconds:.1f} s in {took:.1f} s", "-", True)


# -- the clients of the streams, in a process of their own ----------------------------------------


def _follow_all(port: int, pipe: Connection) -> None:
    uvloop.run(_follow(port, pipe))


async def _follow(port: int, pipe: Connection) -> None:
    streams = [_Stream() for _ in range(STREAMS)]
    tasks = [asyncio.create_task(stream.follow(port)) for stream in streams]
    for one in streams:
        await one.started.wait()
    pipe.send("all follow")
    last = await asyncio.to_thread(pipe.recv)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(stream.last != last for stream in streams):  # noqa: ASYNC110  # streams have no event
        await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    pipe.send(
        [StreamEnd(stream.after, stream.events, stream.last, stream.digest.hexdigest()) for stream in streams]
    )


class _Stream:
    """One client of the event stream, and what it has had."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.after = self.last = ""
        self.events = 0
        self.digest = hashlib.sha256()

    async def follow(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/events?types=all HTTP/1.1\r\nhost: localhost\r\n\r\n")
        buffer = b""
        while part := await reader.read(1 << 18):
            buffer += part
            if not self.after:
                if not (match := _PLACE.search(buffer)):
                    continue
                self.after = match[1].decode()
                self.started.set()
            end = buffer.rfind(b"\n\n") + 2
            whole, buffer = buffer[:end], buffer[end:]
            if ids := _ID.findall(whole):
                self.events += len(ids)
                self.last = ids[-1].decode()
                self.digest.update(b"".join(ids))
        writer.close()


# -- those who ask, in a process of their own -----------------------------------------------------


def _ask_all(port: int, pipe: Connection) -> None:
    pipe.send(uvloop.run(_ask(port)))


async def _ask(port: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)
    start = time.perf_counter() + 0.5
    due = _due(start)
    await asyncio.gather(*(_connection(port, due, times, start + WARM_UP) for _ in range(CONNECTIONS)))
    return dict(times)


def _due(start: float) -> Iterator[tuple[float, str]]:
    chance = random.Random(1)
    kinds = chance.choices(list(_MIX), list(_MIX.values()), k=int(RATE * (WARM_UP + SECONDS)))
    for number, kind in enumerate(kinds):
        yield start + number / RATE, kind


async def _connection(
    port: int, due: Iterator[tuple[float, str]], times: dict[str, Any], counts_from: float
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for when, kind in due:
        await asyncio.sleep(max(0.0, when - time.perf_counter()))
        path = kind.replace("{agent}", f"agent-{random.randrange(WORKERS)}")
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if b" 200 " not in head[:20] or length is None:
            raise RuntimeError(f"GET {path}: {head.decode()}")
        await reader.readexactly(int(length[1]))
        if when >= counts_from:
            times[kind].append(time.perf_counter() - when)
    writer.close()


if __name__ == "__main__":
    for row in run():
        print(row)
