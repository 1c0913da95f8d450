"""
A cluster against one process, on the same PostgreSQL: spans a CPU-second, acknowledgement, takeover.

The CPU is that of the service's processes, without PostgreSQL and nats-server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.conftest import Cluster, Nats, Process
from tests.databases import Postgres, connected
from tests.ports import reserve_port
from tests.waiting import until
from tools.benchmarks.otlp import make_requests
from tools.benchmarks.row import Row

_BATCH = 512
_SENDERS = 4
_HEADERS = {"content-type": "application/x-protobuf"}
_TICKS = os.sysconf("SC_CLK_TCK")


def run() -> list[Row]:
    """Measure."""
    return asyncio.run(_run())


async def _run() -> list[Row]:
    with tempfile.TemporaryDirectory() as name, reserve_port("nats-server") as port:
        folder = Path(name)
        postgres, nats = Postgres(), Nats(folder, port)
        nats.start()
        try:
            alone = await _measure(folder / "alone", postgres, nats, processes=1, is_cluster=False)
            one = await _measure(folder / "one", postgres, nats, processes=1)
            two = await _measure(folder / "two", postgres, nats, processes=2)
        finally:
            nats.kill()
            postgres.remove()
    spans = [f"{found['spans']:,.0f}" for found in (alone, one, two)]
    takeovers = two["takeovers"]
    return [
        Row(
            "spans a CPU-second on PostgreSQL: one process / a cluster of one / of two",
            " / ".join(spans),
            "",
            True,
        ),
        Row(
            "acknowledgement of a batch of 512 spans, p50 / p99: one process / a cluster of two",
            f"{alone['p50']:.0f} / {alone['p99']:.0f}, {two['p50']:.0f} / {two['p99']:.0f} ms",
            "p99 ≤ 50 ms",
            two["p99"] <= 50,
        ),
        Row(
            "takeover after SIGKILL / SIGSTOP of the owner",
            f"{takeovers['SIGKILL']:.1f} / {takeovers['SIGSTOP']:.1f} s",
            "≤ 10 s",
            max(takeovers.values()) <= 10,
        ),
    ]


async def _measure(
    folder: Path, postgres: Postgres, nats: Nats, *, processes: int, is_cluster: bool = True
) -> dict[str, Any]:
    settings: dict[str, Any] = {} if is_cluster else {"cluster": {}}
    cluster = Cluster(folder, postgres, postgres.migrated(), nats, settings)
    try:
        found = [await asyncio.to_thread(cluster.add) for _ in range(processes)]
        if is_cluster:
            await cluster.owner()
        result = await _send(cluster, found)
        if processes > 1:
            result["takeovers"] = {
                number.name: await _takeover(cluster, number) for number in (signal.SIGSTOP, signal.SIGKILL)
            }
        return result
    finally:
        for process in cluster.processes:
            process.kill()


async def _send(cluster: Cluster, processes: list[Process]) -> dict[str, Any]:
    requests = make_requests(_BATCH)
    seconds: list[float] = []
    before = sum(_cpu(process) for process in processes)

    async def send(first: int, client: httpx.AsyncClient) -> None:
        for place in range(first, len(requests), _SENDERS):
            began = time.perf_counter()
            url = processes[place % len(processes)].otlp_url
            answer = await client.post(f"{url}/v1/traces", content=requests[place], headers=_HEADERS)
            answer.raise_for_status()
            seconds.append(time.perf_counter() - began)

    async with httpx.AsyncClient(trust_env=False, timeout=60) as client, asyncio.TaskGroup() as group:
        for first in range(_SENDERS):
            group.create_task(send(first, client))
    spans = _BATCH * len(requests)
    # A third of the spans are tool calls.
    await until(lambda: _stored(cluster) >= spans // 3 - _BATCH, "the spans are stored", seconds=600)
    cpu = sum(_cpu(process) for process in processes) - before
    return {
        "spans": spans / cpu,
        "p50": 1000 * statistics.median(seconds),
        "p99": 1000 * sorted(seconds)[int(len(seconds) * 0.99)],
    }


async def _takeover(cluster: Cluster, number: signal.Signals) -> float:
    """Return the seconds until another process is the owner; the former one is back afterwards."""
    owner = await cluster.owner()
    began = time.perf_counter()
    owner.signal(number)
    await cluster.owner(other_than=owner)
    seconds = time.perf_counter() - began
    if number is signal.SIGSTOP:
        owner.signal(signal.SIGCONT)
        await asyncio.sleep(5)
    return seconds


def _stored(cluster: Cluster) -> int:
    with connected(cluster.database) as conn:
        counted = conn.exec_driver_sql("SELECT count(*) FROM events WHERE type = 'tool_call_completed'")
        return int(counted.scalar_one())


def _cpu(process: Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
