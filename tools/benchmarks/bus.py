"""The event bus: events per second, and the cost of a sleeping subscriber for the publisher."""

from __future__ import annotations

import asyncio
import time

from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from tools.benchmarks.row import Row

_WORKERS = 1_000
_BATCH = 500


class _Fleet:
    """A subscriber that works like a monitor: it finds the worker's record and updates it."""

    def __init__(self) -> None:
        self.vitals: dict[tuple[str, str], dict[str, float]] = {}

    def __call__(self, event: AgentEvent) -> None:
        key = (event.agent_id, event.session_id)
        vitals = self.vitals.get(key)
        if vitals is None:
            vitals = self.vitals[key] = {"steps": 0, "last_activity": 0.0}
        vitals["steps"] += 1
        vitals["last_activity"] = event.time


async def _measure_throughput(events: int) -> float:
    bus = EventBus()
    fleet = _Fleet()
    bus.subscribe(fleet, name="monitor", capacity=2 * _BATCH)
    bus.subscribe(lambda _: None, name="tickets", types={EventType.WORKER_ESCALATION_TICKET})
    batch = [
        AgentEvent(type=EventType.STEP_COMPLETED, time=1.0, agent_id=f"agent-{n % _WORKERS}", session_id="s")
        for n in range(_BATCH)
    ]
    start = time.perf_counter()
    for _ in range(events // _BATCH):
        await bus.publish(*batch)
        await bus.drain()
    elapsed = time.perf_counter() - start
    step_count = sum(v["steps"] for v in fleet.vitals.values())
    assert step_count == events // _BATCH * _BATCH
    await bus.close()
    return step_count / elapsed


async def _measure_publish_times(seconds: float) -> list[float]:
    """Publish a thousand events per second next to a subscriber that sleeps."""
    bus = EventBus()
    asleep = asyncio.Event()

    async def sleeper(_: AgentEvent) -> None:
        await asleep.wait()

    bus.subscribe(sleeper, name="sleeper", capacity=1_000)
    bus.subscribe(_Fleet(), name="monitor")
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        event = AgentEvent(type=EventType.STEP_COMPLETED, time=1.0, agent_id="a", session_id="s")
        start = time.perf_counter()
        await bus.publish(event)
        times.append(time.perf_counter() - start)
        await asyncio.sleep(0.001)
    await bus.close()
    return sorted(times)


def run() -> list[Row]:
    """Run the measurements, which take about twelve seconds."""
    rate = asyncio.run(_measure_throughput(200_000))
    times = asyncio.run(_measure_publish_times(10))
    p99 = times[int(len(times) * 0.99)] * 1e3
    return [
        Row("bus: events/s to a monitor-like subscriber", f"{rate:,.0f}/s", "≥ 50,000/s", rate >= 50_000),
        Row("bus: publish past a subscriber asleep for 10 s, p99", f"{p99:.3f} ms", "≤ 1 ms", p99 <= 1.0),
    ]
