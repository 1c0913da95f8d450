"""
The cost of a span and a worker for one process on PostgreSQL: CPU, memory, rows, snapshots, a restart.

Each worker reports its start, and alternately a model call, a tool call and a step.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import httpx
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from sqlalchemy import delete, func, select

from queenright.cli.jobs.service import tune_garbage_collector
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.monitor_snapshot import MonitorSnapshot
from queenright.health.monitoring.snapshot_table import read_snapshot
from queenright.health.settings import HealthSettings
from queenright.health.store.tables import SNAPSHOT_PARTS
from queenright.instrumentation import names
from tests.cluster.conftest import Cluster, Nats, Process
from tests.databases import Postgres, connected
from tools.benchmarks.cluster import measure_cpu, measure_memory, send_fast, wait_until_stored
from tools.benchmarks.otlp import make_requests, worker_attributes
from tools.benchmarks.row import Row

WORKERS = 10_000
_TURNS = 3
"""Further turns of each worker, with three spans each."""
_IDLE_SECONDS = 30
_BATCH = 512
_FIRST = 1_200
"""Spans that are sent before the measurement."""
_OLD = 2_000
"""Workers whose start is not in the log."""


def run() -> list[Row]:
    """Measure."""
    return asyncio.run(_run())


async def _run() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder, postgres = Path(name), Postgres()
        cluster = Cluster(folder, postgres, postgres.migrated(), Nats(folder, 0), {"cluster": None})
        try:
            process = await asyncio.to_thread(cluster.add)
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                return await _measure(client, cluster, process)
        finally:
            for running_process in cluster.processes:
                running_process.kill()
            postgres.remove()


async def _measure(client: httpx.AsyncClient, cluster: Cluster, process: Process) -> list[Row]:
    # Exclude the imports of the first requests.
    await _send(client, cluster, process, first=0, spans=_FIRST, workers=200, row_count=0)
    empty = await _restart(client, cluster, process)
    idle = await measure_cpu(cluster, asyncio.sleep(_IDLE_SECONDS))
    initial, tables = measure_memory(process), _read_table_sizes(cluster)

    await _report_starts(client, process)
    new_spans, further_spans = 3 * WORKERS, 3 * WORKERS * _TURNS
    await _send(client, cluster, process, first=_FIRST, spans=new_spans, workers=WORKERS, row_count=_FIRST)
    new_size, span_count = measure_memory(process), _FIRST + new_spans
    cpu_seconds = await measure_cpu(
        cluster,
        _send(
            client,
            cluster,
            process,
            first=span_count,
            spans=further_spans,
            workers=WORKERS,
            row_count=span_count,
        ),
    )
    full_size, all_tables = measure_memory(process), _read_table_sizes(cluster)
    cpu_with_workers = await measure_cpu(cluster, asyncio.sleep(_IDLE_SECONDS))
    spans = new_spans + further_spans
    rows = {table: all_tables[table][0] - tables[table][0] for table in tables}
    sizes = {table: all_tables[table][1] - tables[table][1] for table in tables}
    started_with_snapshot = await _restart(client, cluster, process, with_snapshot=True)
    snapshot = _measure_snapshot(cluster)
    start_seconds = await _restart(client, cluster, process)
    await _send(
        client,
        cluster,
        process,
        first=span_count + further_spans,
        spans=3 * _OLD,
        workers=_OLD,
        prefix="old",
        row_count=span_count + further_spans,
    )
    started_with_old = await _restart(client, cluster, process)
    bodies = make_requests(_BATCH, _BATCH * 20)
    megabytes = 1024
    return [
        Row(
            "a span: CPU of the service + PostgreSQL",
            f"{1e6 * cpu_seconds[0] / further_spans:.0f} + {1e6 * cpu_seconds[1] / further_spans:.0f} µs",
            "",
            True,
        ),
        Row(
            "a span: rows of events, bytes of the table with its indexes, bytes as OTLP",
            f"{rows['events'] / spans:.2f}, {sizes['events'] / spans:.0f}, "
            f"{sum(map(len, bodies)) / (_BATCH * 20):.0f}",
            "",
            True,
        ),
        Row(
            "a worker: memory when new, after four turns",
            f"{(new_size - initial) * megabytes / WORKERS:.1f}, "
            f"{(full_size - initial) * megabytes / WORKERS:.1f} KB",
            "",
            True,
        ),
        Row(
            "a worker: rows and bytes of all other tables",
            f"{(sum(rows.values()) - rows['events']) / WORKERS:.2f}, "
            f"{(sum(sizes.values()) - sizes['events']) / WORKERS:.0f}",
            "",
            True,
        ),
        Row(
            f"{WORKERS:,} workers that report nothing: CPU of the service",
            f"{100 * (cpu_with_workers[0] - idle[0]) / _IDLE_SECONDS:.1f} % of a core",
            "",
            True,
        ),
        *snapshot,
        Row(
            f"start with a snapshot of {WORKERS:,} workers, and {all_tables['events'][0]:,} events",
            f"{started_with_snapshot:.1f} s",
            "",
            True,
        ),
        Row(
            f"the same without a snapshot: {tables['events'][0]:,} events of the last day, "
            f"{all_tables['events'][0]:,}",
            f"{empty:.1f}, {start_seconds:.1f} s",
            "",
            True,
        ),
        Row(
            "the same: for each session that began before the last day",
            f"{1000 * (started_with_old - start_seconds) / _OLD:.1f} ms",
            "",
            True,
        ),
    ]


async def _restart(
    client: httpx.AsyncClient, cluster: Cluster, process: Process, *, with_snapshot: bool = False
) -> float:
    """Restart the process with or without a snapshot; return the seconds until it is ready."""
    if with_snapshot:
        await asyncio.to_thread(process.stop)
    else:
        process.kill()
        with connected(cluster.database) as conn:
            conn.execute(delete(SNAPSHOT_PARTS))
            conn.commit()
    start = time.monotonic()
    await asyncio.to_thread(process.start)
    while (await client.get(f"{process.url}/readyz")).status_code != 200:  # noqa: ASYNC110  # another process
        await asyncio.sleep(0.02)
    return time.monotonic() - start


def _measure_snapshot(cluster: Cluster) -> list[Row]:
    """Read the snapshot in the database, and write another one of the same workers."""
    monitor = HealthMonitor(HealthSettings())
    tune_garbage_collector()
    with connected(cluster.database) as conn:
        size = conn.execute(select(func.sum(func.length(SNAPSHOT_PARTS.c.data)))).scalar_one()
        start = time.perf_counter()
        read_snapshot(conn, monitor)
        read_seconds = time.perf_counter() - start
    start, longest = time.perf_counter(), 0.0
    snapshot = MonitorSnapshot(monitor)
    part_began = start
    while snapshot.next_part() is not None:
        longest = max(longest, time.perf_counter() - part_began)
        part_began = time.perf_counter()
    seconds = time.perf_counter() - start
    workers = len(list(monitor.workers()))
    return [
        Row(
            "a worker in a snapshot: time in the event loop, time to read, bytes",
            f"{1e6 * seconds / workers:.0f} µs, {1e6 * read_seconds / workers:.0f} µs, {size / workers:.0f}",
            "40 µs",
            1e6 * seconds <= 40 * workers,
        ),
        Row(
            f"a part of a snapshot of {workers:,} workers, the longest",
            f"{1000 * longest:.0f} ms",
            "50 ms",
            longest <= 0.05,
        ),
    ]


async def _report_starts(client: httpx.AsyncClient, process: Process) -> None:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for worker in range(WORKERS):
        now = time.time_ns() - 120 * 10**9
        record = scope.log_records.add(event_name=names.EVENT_AGENT_STARTED, time_unix_nano=now)
        for key, value in worker_attributes(worker).items():
            record.attributes.add(key=key).value.string_value = value
    answer = await client.post(
        f"{process.otlp_url}/v1/logs",
        content=request.SerializeToString(),
        headers={"content-type": "application/x-protobuf"},
    )
    answer.raise_for_status()


async def _send(
    client: httpx.AsyncClient,
    cluster: Cluster,
    process: Process,
    *,
    first: int,
    spans: int,
    workers: int,
    row_count: int,
    prefix: str = "agent",
) -> None:
    await send_fast(client, [process], make_requests(_BATCH, spans, workers, first=first, prefix=prefix))
    await wait_until_stored(cluster, row_count + spans)


def _read_table_sizes(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Return the rows and bytes of each table, with its indexes."""
    with connected(cluster.database) as conn:
        conn.exec_driver_sql("VACUUM ANALYZE")
        tables = [
            row[0]
            for row in conn.exec_driver_sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        ]
        return {
            table: (
                int(conn.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()),
                int(conn.exec_driver_sql(f"SELECT pg_total_relation_size('{table}')").scalar_one()),
            )
            for table in tables
        }
