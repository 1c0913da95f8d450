"""
The store: rows a second into the event log, one after the other and together, and what a ticket costs.

On both engines; PostgreSQL is the tests', on the same machine, with ``fsync`` on. The budget is SQLite's.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

from queenright.health.event_log import verify
from queenright.health.findings import Finding, FindingKind, HealthState, Severity
from queenright.health.monitor import WorkerHealth
from queenright.health.settings import HealthSettings, Loops
from queenright.health.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets import TicketDraft
from queenright.health.vitals import VitalSigns
from queenright.instrumentation.identity import new_id
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import Postgres
from tools.benchmarks.row import Row

_ROWS = 50_000
_FLOOR = 20_000
_TICKETS = 200
_TYPES = (
    EventType.STEP_COMPLETED,
    EventType.TOOL_CALL_STARTED,
    EventType.TOOL_CALL_COMPLETED,
    EventType.LLM_CALL_COMPLETED,
)


def run() -> list[Row]:
    """Return the rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        files = (f"sqlite:///{folder}/{number}.db" for number in itertools.count())
        rows = asyncio.run(_run("SQLite", files, budgeted=True))
    server = Postgres(on_disk=True, fsync="on")
    try:
        databases = (server.empty() for _ in itertools.count())
        return rows + asyncio.run(_run("PostgreSQL", databases, budgeted=False))
    finally:
        server.remove()


async def _run(engine: str, addresses: Iterator[str], *, budgeted: bool) -> list[Row]:
    rows = []
    for batch, count in ((1, 4_000), (100, _ROWS), (500, _ROWS)):
        store = Store.open(next(addresses))
        wall, cpu = await _timed(store, batch, count, together=False)
        name = f"{engine}: event rows, each batch of {batch} awaited"
        rows.append(_row(name, count, wall, cpu, budgeted and batch > 1))
        await store.close()
    store = Store.open(next(addresses))
    wall, cpu = await _timed(store, 100, _ROWS, together=True)
    name = f"{engine}: event rows, batches of 100 from many at once"
    rows.append(_row(name, _ROWS, wall, cpu, budgeted))
    began = time.perf_counter()
    found = await store.read(verify)
    seconds = time.perf_counter() - began
    rows.append(Row(f"{engine}: audit verify", f"{found.rows / seconds:,.0f} rows/s", "-", found.ok))
    rows.append(await _raise(engine, store))
    await store.close()
    return rows


async def _timed(store: Store, batch: int, count: int, *, together: bool) -> tuple[float, float]:
    events = [_event(number) for number in range(count)]
    batches = [events[start : start + batch] for start in range(0, count, batch)]
    wall, cpu = time.perf_counter(), time.process_time()
    if together:
        await asyncio.gather(*map(store.append, batches))
    else:
        for one in batches:
            await store.append(one)
    return time.perf_counter() - wall, time.process_time() - cpu


def _event(number: int) -> AgentEvent:
    return AgentEvent(
        type=_TYPES[number % 4],
        time=1_700_000_000.0 + number / 1000,
        agent_id=f"agent_{number % 50}",
        session_id=f"session_20260223_143022_{number % 50}",
        incarnation_id=new_id(),
        node_id="researcher",
        trace_id="a" * 32,
        span_id="b" * 16,
        data={
            "tool": "search",
            "call_id": f"call-{number}",
            "args_hash": "0123456789abcdef",
            "result_hash": "0123456789abcdef",
            "outcome": "ok",
            "duration": 1.25,
        },
    )


def _row(name: str, count: int, wall: float, cpu: float, budgeted: bool) -> Row:
    measured = f"{count / wall:,.0f}/s ({count / cpu:,.0f} a CPU-second)"
    return Row(
        name, measured, f">= {_FLOOR:,}/s" if budgeted else "-", not budgeted or count / wall >= _FLOOR
    )


async def _raise(engine: str, store: Store) -> Row:
    publish: Callable[..., None] = lambda *events: None  # noqa: E731
    service = TicketService(store, settings=HealthSettings(), clock=time.time, publish=publish)
    found = Finding(kind=FindingKind.DOOM_LOOP, severity=Severity.HIGH, evidence="e", since=1.0)
    draft = TicketDraft(
        severity=Severity.HIGH, cause="c", judge_reasoning="r", suggested_action="a", evidence_snippet="e"
    )
    taken = []
    for number in range(_TICKETS):
        vitals = VitalSigns("agent", f"session-{number}", 1.0, Loops())
        health = WorkerHealth(vitals, (found,), HealthState.STUCK, 1.0, "")
        began = time.perf_counter()
        await service.raise_ticket(health, draft)
        taken.append(1000 * (time.perf_counter() - began))
    p99 = statistics.quantiles(taken, n=100)[98]
    measured = f"median {statistics.median(taken):.1f} ms, p99 {p99:.1f} ms"
    return Row(f"{engine}: ticket raised and on disk", measured, "-", True)
