"""The service's worker series: what an event costs, and what a scrape does to the loop."""

from __future__ import annotations

import gc
import time

from prometheus_client import CollectorRegistry

from queenright.health.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.metrics.metrics import OPENMETRICS, render_families
from queenright.server.metrics.worker_series import WorkerSeries
from tools.benchmarks.row import Row

_STEPS = 20
_EACH_STEP: tuple[tuple[EventType, dict[str, object]], ...] = (
    (EventType.STEP_STARTED, {"index": 1}),
    (EventType.LLM_CALL_STARTED, {"model": "m"}),
    (EventType.LLM_CALL_COMPLETED, {"model": "m", "input_tokens": 900, "output_tokens": 80, "duration": 2.0}),
    (EventType.TOOL_CALL_STARTED, {"tool": "search"}),
    (EventType.TOOL_CALL_COMPLETED, {"tool": "search", "outcome": "ok", "duration": 0.2}),
    (EventType.STEP_COMPLETED, {"verdict": "ACCEPT", "duration": 2.5}),
)


def _events(agents: int) -> list[AgentEvent]:
    return [
        AgentEvent(
            type=kind,
            time=1e6 + step,
            agent_id=f"agent-{n}",
            session_id="s",
            node_id="plan",
            trace_id="a" * 32,
            data=data,
        )
        for step in range(_STEPS)
        for n in range(agents)
        for kind, data in _EACH_STEP
    ]


def _measure(agents: int) -> tuple[float, float, float]:
    """Return seconds per event, of bringing the gauges up to date, and of writing a whole page."""
    monitor, registry = HealthMonitor(HealthSettings()), CollectorRegistry()
    series = WorkerSeries(registry, monitor.workers, monitor.get, time.time)
    for n in range(agents):
        started = AgentEvent(
            type=EventType.EXECUTION_STARTED,
            time=1e6,
            agent_id=f"agent-{n}",
            session_id="s",
            data={"framework": "f"},
        )
        monitor.apply(started, 1e6)
        series.count(started)
    events = _events(agents)
    for event in events[: len(events) // _STEPS]:
        monitor.apply(event, event.time)
        series.count(event)
    gc.collect()
    began = time.process_time()
    for event in events:
        series.count(event)
    each = (time.process_time() - began) / len(events)
    series.collect()
    began = time.process_time()
    series.collect()
    gauges = time.process_time() - began
    began = time.process_time()
    render_families(registry.collect(), OPENMETRICS)
    return each, gauges, time.process_time() - began


def run() -> list[Row]:
    """Measure; takes about ten seconds."""
    each, _, page = min(_measure(100) for _ in range(3))
    beyond, gauges, whole = min(_measure(2_000) for _ in range(2))
    return [
        Row("worker series: an event, 100 agents", f"{each * 1e6:.2f} µs", "≤ 4 µs", each <= 4e-6),
        Row(
            "worker series: an event, 2,000 agents, 1,500 of them `other`",
            f"{beyond * 1e6:.2f} µs",
            "≤ 8 µs",
            beyond <= 8e-6,
        ),
        Row(
            "worker series: gauges of 2,000 agents at a scrape",
            f"{gauges * 1e3:.1f} ms",
            "≤ 25 ms",
            gauges <= 0.025,
        ),
        Row("worker series: page of 100 agents", f"{page * 1e3:.0f} ms", "≤ 150 ms", page <= 0.15),
        Row(
            "worker series: page of 500 agents and `other`", f"{whole * 1e3:.0f} ms", "≤ 500 ms", whole <= 0.5
        ),
    ]
