"""The costs of the health layer: events per second, memory per worker, and an empty tick."""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import Any

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.runtime.events import AgentEvent, EventType
from tools.benchmarks.row import Row

EVENTS = 200_000
FLEET = 100_000
CALLS = 70


def run() -> list[Row]:
    """Run all measurements, which take about a minute."""
    return [_measure_throughput(), *_measure_memory(), _measure_tick(), *_measure_sweep()]


def _make_step(worker: int, turn: int, at: float) -> list[AgentEvent]:
    """Return one healthy step of a worker: its start, an LLM call, a tool call, its end."""
    identity = {
        "agent_id": f"agent-{worker}",
        "session_id": f"session-{worker:032d}",
        "incarnation_id": f"incarnation-{worker:024d}",
        "node_id": "work",
        "trace_id": f"{worker:032x}",
        "span_id": f"{turn:016x}",
    }
    call = {
        "tool": "search",
        "turn": turn,
        "args_hash": f"{turn:016x}",
        "result_hash": f"{turn * 7919:016x}",
        "outcome": "ok",
    }
    kinds: tuple[tuple[EventType, dict[str, Any]], ...] = (
        (EventType.STEP_STARTED, {"index": turn}),
        (EventType.LLM_CALL_STARTED, {"model": "m"}),
        (EventType.LLM_CALL_COMPLETED, {"model": "m", "input_tokens": 2_000, "output_tokens": 100}),
        (EventType.TOOL_CALL_STARTED, {"tool": "search", "call_id": str(turn)}),
        (EventType.TOOL_CALL_COMPLETED, {**call, "call_id": str(turn)}),
        (
            EventType.STEP_COMPLETED,
            {"index": turn, "verdict": "CONTINUE", "text": f"found {turn} more " * 15},
        ),
    )
    return [
        AgentEvent(type=type_, time=at + i / 10, data=data, id="", **identity)
        for i, (type_, data) in enumerate(kinds)
    ]


def _measure_throughput() -> Row:
    monitor = HealthMonitor(HealthSettings())
    workers = 1_000
    events = [
        event
        for turn in range(EVENTS // 6 // workers)
        for worker in range(workers)
        for event in _make_step(worker, turn, 1_000_000.0 + turn)
    ]
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for event in events:
        monitor.apply(event, event.time)
    seconds = time.perf_counter() - start
    gc.enable()
    rate = len(events) / seconds
    return Row(
        "monitor: events of healthy workers",
        f"{rate:,.0f}/s ({1e6 / rate:.1f} µs)",
        "≥ 125,000/s (8 µs)",
        rate >= 125_000,
    )


def _measure_memory() -> list[Row]:
    """Return the memory of a worker with a full history, and of a new one."""
    rows = []
    for name, turns, budget in (("with a full history", CALLS, 4096), ("just begun", 1, 4096)):
        workers = FLEET // 50
        gc.collect()
        tracemalloc.start()
        monitor = HealthMonitor(HealthSettings())
        bytes_before, _ = tracemalloc.get_traced_memory()
        for worker in range(workers):
            for turn in range(turns):
                for event in _make_step(worker, turn, 1_000_000.0 + turn):
                    monitor.apply(event, event.time)
        gc.collect()
        bytes_after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        size = (bytes_after - bytes_before) / workers
        rows.append(
            Row(f"monitor: memory of a worker {name}", f"{size:,.0f} B", f"≤ {budget:,} B", size <= budget)
        )
        del monitor
    return rows


def _measure_tick() -> Row:
    monitor = HealthMonitor(HealthSettings())
    for worker in range(FLEET):
        for event in _make_step(worker, 0, 1_000_000.0)[:1]:
            monitor.apply(event, event.time)
    times = []
    for tick in range(200):
        start = time.perf_counter()
        monitor.advance(1_000_001.0 + tick / 10)
        times.append(time.perf_counter() - start)
    slowest = max(times) * 1e3
    return Row(
        f"monitor: tick with none of {FLEET:,} due, slowest of 200",
        f"{slowest:.3f} ms",
        "≤ 1 ms",
        slowest <= 1.0,
    )


def _measure_sweep() -> list[Row]:
    """Return the duration of the slowest part of a sweep, which blocks the event loop."""
    monitor = HealthMonitor(HealthSettings())
    for worker in range(FLEET):
        for event in _make_step(worker, 0, 1_000_000.0)[:3]:
            monitor.apply(event, event.time)
    times, is_done = [], False
    while not is_done:
        start = time.perf_counter()
        is_done = monitor.sweep_part(1_000_001.0, 1_000).is_last
        times.append(time.perf_counter() - start)
    slowest = max(times) * 1e3
    return [
        Row(
            f"monitor: sweep over {FLEET:,}, slowest part of 1,000",
            f"{slowest:.0f} ms",
            "≤ 50 ms",
            slowest <= 50.0,
        ),
    ]
