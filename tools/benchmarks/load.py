"""
A service under load: 1,000 workers, telemetry, 200 event streams, 500 requests a second, for a minute.

The service (``queenright serve``), the stream clients and the request clients are separate processes.
Requests are sent when they are due, whether or not earlier ones were answered, and measured from then, so
that the wait for a connection counts. ``LOAD_SECONDS``, ``LOAD_RATE``, ``LOAD_STREAMS`` and ``LOAD_WORKERS``
set the numbers.

The first ``WARM_UP`` seconds count only for the streams, because a new service builds its routes and queries
on first use.
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
from tools.benchmarks.otlp import make_span
from tools.benchmarks.row import Row
from tools.benchmarks.start import process_time

SECONDS: Final = float(os.environ.get("LOAD_SECONDS", "60"))
RATE: Final = int(os.environ.get("LOAD_RATE", "500"))
STREAMS: Final = int(os.environ.get("LOAD_STREAMS", "200"))
WORKERS: Final = int(os.environ.get("LOAD_WORKERS", "1000"))
EVENTS: Final = 100
"""Spans received per second; each becomes an event of the log."""
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
Requests in percent: programs that read one worker, a dozen consoles and terminals that read all, probes,
and a scrape every four seconds.
"""

_ID: Final = re.compile(rb"\nid: ([^\n]+)\ndata: ")
_FIRST_ID: Final = re.compile(rb"\nid: ([^\n]+)\n\n")
_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class StreamEnd(NamedTuple):
    """What a stream received: the event before its first, the number of events, the last id, a hash."""

    after: str
    events: int
    last: str
    digest: str


def run() -> list[Row]:
    """Run the measurements, and compare the events of every stream with the log."""
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
            self._prepare()
            return self._measure(service.pid)
        finally:
            service.terminate()
            service.wait()

    def _prepare(self) -> None:
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
        spans = [make_span(next(self._spans), WORKERS) for _ in range(count)]
        request.resource_spans.add().scope_spans.add().spans.extend(spans)
        http.post(
            f"http://127.0.0.1:{self._otlp}/v1/traces",
            content=request.SerializeToString(),
            headers={"content-type": "application/x-protobuf"},
        ).raise_for_status()

    def _measure(self, pid: int) -> list[Row]:
        spawn = multiprocessing.get_context("spawn")
        server_pipe, client_pipe = spawn.Pipe()
        followers = spawn.Process(target=_follow_all, args=(self._port, client_pipe))
        followers.start()
        server_pipe.recv()
        pipe, request_pipe = spawn.Pipe()
        clients = spawn.Process(target=_send_all_requests, args=(self._port, request_pipe))
        clients.start()
        before, start = 0.0, time.monotonic()
        is_warm = False
        with httpx.Client(trust_env=False) as http:
            for tick in itertools.count(1):
                self._send(http, EVENTS // 10)
                if not is_warm and time.monotonic() - start > WARM_UP:
                    is_warm, before = True, process_time(pid)
                if time.monotonic() - start > WARM_UP + SECONDS:
                    break
                time.sleep(max(0.0, start + tick / 10 - time.monotonic()))
        times: dict[str, list[float]] = pipe.recv()
        clients.join()
        cpu_seconds, elapsed = process_time(pid) - before, time.monotonic() - start - WARM_UP
        log = self._read_final_log()
        server_pipe.send(log[-1])
        streams: list[StreamEnd] = server_pipe.recv()
        followers.join()
        return [
            *_make_request_rows(times),
            _make_stream_row(streams, log),
            _make_service_row(cpu_seconds, elapsed),
        ]

    def _read_final_log(self) -> list[str]:
        """Wait until the log no longer grows, and return its ids."""
        log: list[str] = []
        while True:
            store = Store.open(f"sqlite:///{self._folder / 'queenright.db'}", read_only=True)
            ids = [event.id for _, event in store.read_now(lambda conn: read_events(conn, limit=10**7))]
            store.close_now()
            if ids == log:
                return log
            log = ids
            time.sleep(2)


def _make_request_rows(times: dict[str, list[float]]) -> list[Row]:
    rows = [_make_row(f"GET {kind}", kind_times) for kind, kind_times in sorted(times.items())]
    all_times = [seconds for kind_times in times.values() for seconds in kind_times]
    return [*rows, _make_row(f"all of {RATE} requests/s for {SECONDS:.0f} s, {WORKERS:,} workers", all_times)]


def _make_row(name: str, times: list[float]) -> Row:
    p99 = statistics.quantiles(times, n=100)[98]
    text = (
        f"p50 {statistics.median(times) * 1e3:.1f}, p99 {p99 * 1e3:.1f}, max {max(times) * 1e3:.0f} ms "
        f"({len(times):,})"
    )
    return Row(name, text, f"p99 <= {BUDGET * 1e3:.0f} ms", p99 <= BUDGET)


def _make_stream_row(streams: list[StreamEnd], log: list[str]) -> Row:
    positions = {event_id: number for number, event_id in enumerate(log, start=1)}
    complete_count = 0
    for stream in streams:
        log_part = log[positions[stream.after] :]
        digest = hashlib.sha256("".join(log_part).encode()).hexdigest()
        complete_count += (stream.events, stream.digest) == (len(log_part), digest)
    events = max((stream.events for stream in streams), default=0)
    text = f"{complete_count} of {len(streams)} received all of {events:,} events once and in order"
    return Row(f"{STREAMS} event streams", text, "all", complete_count == STREAMS == len(streams))


def _make_service_row(cpu_seconds: float, elapsed: float) -> Row:
    # On a machine with other load, this is the meaningful number.
    return Row("CPU of the service", f"{cpu_seconds:.1f} s in {elapsed:.1f} s", "-", True)


# -- stream clients, in a separate process --------------------------------------------------------


def _follow_all(port: int, pipe: Connection) -> None:
    uvloop.run(_follow(port, pipe))


async def _follow(port: int, pipe: Connection) -> None:
    streams = [_Stream() for _ in range(STREAMS)]
    tasks = [asyncio.create_task(stream.follow(port)) for stream in streams]
    for stream in streams:
        await stream.started.wait()
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
    """A client of the event stream, and the events that it received."""

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
                if not (match := _FIRST_ID.search(buffer)):
                    continue
                self.after = match[1].decode()
                self.started.set()
            end = buffer.rfind(b"\n\n") + 2
            complete, buffer = buffer[:end], buffer[end:]
            if ids := _ID.findall(complete):
                self.events += len(ids)
                self.last = ids[-1].decode()
                self.digest.update(b"".join(ids))
        writer.close()


# -- request clients, in a separate process -------------------------------------------------------


def _send_all_requests(port: int, pipe: Connection) -> None:
    pipe.send(uvloop.run(_send_requests(port)))


async def _send_requests(port: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)
    start = time.perf_counter() + 0.5
    due_times = _iterate_due_times(start)
    await asyncio.gather(
        *(_send_on_connection(port, due_times, times, start + WARM_UP) for _ in range(CONNECTIONS))
    )
    return dict(times)


def _iterate_due_times(start: float) -> Iterator[tuple[float, str]]:
    random_ = random.Random(1)
    kinds = random_.choices(list(_MIX), list(_MIX.values()), k=int(RATE * (WARM_UP + SECONDS)))
    for number, kind in enumerate(kinds):
        yield start + number / RATE, kind


async def _send_on_connection(
    port: int, due_times: Iterator[tuple[float, str]], times: dict[str, Any], counts_from: float
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for due_time, kind in due_times:
        await asyncio.sleep(max(0.0, due_time - time.perf_counter()))
        path = kind.replace("{agent}", f"agent-{random.randrange(WORKERS)}")
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if b" 200 " not in head[:20] or length is None:
            raise RuntimeError(f"GET {path}: {head.decode()}")
        await reader.readexactly(int(length[1]))
        if due_time >= counts_from:
            times[kind].append(time.perf_counter() - due_time)
    writer.close()


if __name__ == "__main__":
    for row in run():
        print(row)
