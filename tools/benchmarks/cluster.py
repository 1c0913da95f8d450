"""
Clusters of one, two and four processes, compared with a single process.

Rows: throughput, acknowledgement, takeover, memory. Each process of a cluster has its own partition and
stores the same number of spans. Throughput is per CPU-second of all processes of the service, because the
machine may have fewer cores than processes, and other load. Their CPU without telemetry is a separate row.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.cluster.conftest import Cluster, Nats, Process
from tests.cluster.test_partitions import wait_for_answers, wait_for_shares
from tests.databases import Postgres, connected
from tests.ports import reserve_port
from tools.benchmarks.otlp import make_requests
from tools.benchmarks.row import Row

_BATCH = 512
_SPANS = 40_000
"""Spans per process."""
_SENDERS = 4
"""Senders per process, because each process has its own agents."""
_RATE = 20
_STEADY = 200
_STEADY_BATCH = 100
"""Requests per second, number of requests, and spans per request of the acknowledgement measurement."""
_IDLE_SECONDS = 10
_STORING_SECONDS = 240
_HEADERS = {"content-type": "application/x-protobuf"}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurement:
    """CPU is in seconds per span, without the idle CPU."""

    service: float
    postgres: float
    nats: float
    idle: float
    """Share of a core that a process uses without telemetry."""
    memory: float
    """Megabytes per process; shared memory counts once."""
    ack_times: Sequence[float]
    """Milliseconds, ascending."""
    takeovers: dict[str, float]
    """Seconds, by signal."""


def run() -> list[Row]:
    """Measure."""
    return asyncio.run(_run())


async def _run() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder, postgres = Path(name), Postgres()
        for storage_name in ("sqlite", "alone", "1", "2", "4"):
            (folder / storage_name).mkdir()
        try:
            sqlite = await _measure(folder / "sqlite", postgres, process_count=0, on_sqlite=True)
            alone = await _measure(folder / "alone", postgres, process_count=0)
            clusters = [await _measure(folder / f"{n}", postgres, process_count=n) for n in (1, 2, 4)]
        finally:
            postgres.remove()
    single, pair, quadruple = clusters
    rates = [f"{1 / measurement.service:,.0f}" for measurement in (sqlite, alone, *clusters)]
    other_cpu = [
        f"{1e6 * measurement.postgres:.0f} + {1e6 * measurement.nats:.0f}"
        for measurement in (sqlite, alone, *clusters)
    ]
    latencies = [
        f"{statistics.median(measurement.ack_times):.0f} / {_p99(measurement.ack_times):.0f}"
        for measurement in (sqlite, alone, *clusters)
    ]
    takeovers = pair.takeovers
    setups = "one process on SQLite, on PostgreSQL; a cluster of one, two, four"
    return [
        Row(
            f"spans per CPU-second: {setups}",
            ", ".join(rates),
            "two and four ≥ 90 % of a cluster of one",
            max(pair.service, quadruple.service) <= single.service / 0.9,
        ),
        Row(
            "CPU of PostgreSQL + NATS per span in µs: the same setups",
            ", ".join(other_cpu),
            "",
            True,
        ),
        Row(
            f"acknowledgement of {_STEADY_BATCH} spans, {_RATE} times per second, p50 / p99: the same setups",
            f"{', '.join(latencies)} ms",
            "p99 ≤ 50 ms",
            _p99(pair.ack_times) <= 50,
        ),
        Row(
            "all partitions watched again after SIGKILL / SIGSTOP of one of two processes",
            f"{takeovers['SIGKILL']:.1f} / {takeovers['SIGSTOP']:.1f} s",
            "≤ 10 s",
            max(takeovers.values()) <= 10,
        ),
        Row(
            "CPU of a process without telemetry: the same setups",
            ", ".join(f"{100 * measurement.idle:.1f}" for measurement in (sqlite, alone, *clusters))
            + " % of a core",
            "",
            True,
        ),
        Row(
            "memory of a process: the same setups",
            ", ".join(f"{measurement.memory:.0f}" for measurement in (sqlite, alone, *clusters)) + " MB",
            "",
            True,
        ),
    ]


def _p99(milliseconds: Sequence[float]) -> float:
    return sorted(milliseconds)[int(len(milliseconds) * 0.99)]


async def _measure(
    folder: Path, postgres: Postgres, *, process_count: int, on_sqlite: bool = False
) -> _Measurement:
    """Measure a cluster of ``process_count`` processes, or one process without NATS if it is 0."""
    count = process_count or 1
    with reserve_port("nats-server") as port:
        nats = Nats(folder, port)
        settings = {"cluster": {"partitions": count} if process_count else None}
        database = f"sqlite:///{folder / 'queenright.db'}" if on_sqlite else postgres.migrated()
        cluster = Cluster(folder, postgres, database, nats, settings)
        try:
            if process_count:
                nats.start()
            processes = [await asyncio.to_thread(cluster.add) for _ in range(count)]
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                if process_count:
                    await _wait_until_shared(client, processes)
                return await _measure_running(client, cluster, processes)
        finally:
            for process in cluster.processes:
                process.kill()
            nats.kill()


async def _wait_until_shared(client: httpx.AsyncClient, processes: Sequence[Process]) -> None:
    even_shares = {process.url: 1 for process in processes}
    for process in processes:
        await wait_for_shares(client, process, lambda shares: shares == even_shares)


async def _measure_running(
    client: httpx.AsyncClient, cluster: Cluster, processes: Sequence[Process]
) -> _Measurement:
    idle = await measure_cpu(cluster, asyncio.sleep(_IDLE_SECONDS))
    idle_rate = [seconds / _IDLE_SECONDS for seconds in idle]
    ack_times = await _send_steadily(client, processes)
    await wait_until_stored(cluster, _STEADY * _STEADY_BATCH)
    spans = _SPANS * len(processes)
    requests = make_requests(_BATCH, spans, first=_STEADY * _STEADY_BATCH)

    async def store() -> None:
        await send_fast(client, processes, requests)
        await wait_until_stored(cluster, _STEADY * _STEADY_BATCH + spans)

    start = time.monotonic()
    cpu_seconds = await measure_cpu(cluster, store())
    wall_seconds = time.monotonic() - start
    service, postgres, nats = (
        (seconds - rate * wall_seconds) / spans for seconds, rate in zip(cpu_seconds, idle_rate, strict=True)
    )
    takeovers = {}
    memory = sum(measure_memory(process) for process in processes) / len(processes)
    if len(processes) == 2:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            takeovers[number.name] = await _measure_takeover(client, processes, number)
    return _Measurement(
        service=service,
        postgres=postgres,
        nats=nats,
        idle=idle_rate[0] / len(processes),
        memory=memory,
        ack_times=ack_times,
        takeovers=takeovers,
    )


async def _send(client: httpx.AsyncClient, process: Process, body: bytes) -> None:
    answer = await client.post(f"{process.otlp_url}/v1/traces", content=body, headers=_HEADERS)
    answer.raise_for_status()


async def _send_steadily(client: httpx.AsyncClient, processes: Sequence[Process]) -> list[float]:
    """Send at a fixed rate; return the milliseconds from the due time of each request to its response."""
    requests = make_requests(_STEADY_BATCH, _STEADY * _STEADY_BATCH)
    start = time.perf_counter()

    async def send(index: int, body: bytes) -> float:
        due = start + index / _RATE
        await asyncio.sleep(due - time.perf_counter())
        await _send(client, processes[index % len(processes)], body)
        return 1000 * (time.perf_counter() - due)

    return await asyncio.gather(*(send(index, body) for index, body in enumerate(requests)))


async def send_fast(
    client: httpx.AsyncClient, processes: Sequence[Process], requests: Sequence[bytes]
) -> None:
    senders = _SENDERS * len(processes)

    async def send(first: int) -> None:
        for index in range(first, len(requests), senders):
            await _send(client, processes[index % len(processes)], requests[index])

    async with asyncio.TaskGroup() as group:
        for first in range(senders):
            group.create_task(send(first))


async def _measure_takeover(
    client: httpx.AsyncClient, processes: Sequence[Process], number: signal.Signals
) -> float:
    """Return the seconds until the second process owns all partitions; then resume a paused first one."""
    victim, successor = processes
    start = time.perf_counter()
    if number is signal.SIGKILL:
        victim.kill()
    else:
        victim.signal(number)
    await wait_for_shares(client, successor, lambda shares: shares == {successor.url: len(processes)})
    await wait_for_answers(client, successor)
    seconds = time.perf_counter() - start
    if number is signal.SIGSTOP:
        victim.signal(signal.SIGCONT)
        await _wait_until_shared(client, processes)
    return seconds


async def wait_until_stored(cluster: Cluster, spans: int) -> None:
    """Wait until the tool calls, a third of the spans, are stored."""
    deadline = time.monotonic() + _STORING_SECONDS
    while (stored := await asyncio.to_thread(_count_events, cluster)) < spans // 3:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{stored} of {spans // 3} tool calls are stored after {_STORING_SECONDS} s")
        await asyncio.sleep(0.2)


def _count_events(cluster: Cluster) -> int:
    with connected(cluster.database) as conn:
        schemas = [""]
        if cluster.database.startswith("postgresql"):
            rows = conn.exec_driver_sql("SELECT schemaname FROM pg_tables WHERE tablename = 'events'")
            schemas = [f"{row[0]}." for row in rows]
        query = "SELECT count(*) FROM {}events WHERE type = 'tool_call_completed'"
        return sum(int(conn.exec_driver_sql(query.format(schema)).scalar_one()) for schema in schemas)


async def measure_cpu(cluster: Cluster, work: Awaitable[None]) -> list[float]:
    """Return the CPU seconds of the service, PostgreSQL and NATS during ``work``."""
    before = _read_cluster_cpu(cluster)
    await work
    return [after - cpu_before for cpu_before, after in zip(before, _read_cluster_cpu(cluster), strict=True)]


def _read_cluster_cpu(cluster: Cluster) -> tuple[float, float, float]:
    """Return the CPU seconds that the service, PostgreSQL and NATS have used."""
    server = cluster.postgres.pid
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    postgres = _read_cpu(server, with_ended=True) + sum(_read_cpu(int(pid)) for pid in children)
    nats = 0.0 if cluster.nats.pid is None else _read_cpu(cluster.nats.pid)
    return sum(_read_cpu(process.pid) for process in cluster.processes), postgres, nats


def _read_cpu(pid: int, *, with_ended: bool = False) -> float:
    """Return the CPU seconds of a process; with ``with_ended``, also those of its ended children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0  # The process has just ended.
    return sum(int(field) for field in fields[11 : 15 if with_ended else 13]) / _TICKS


def measure_memory(process: Process) -> float:
    """Return the memory of a process in megabytes, with its share of shared memory."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
