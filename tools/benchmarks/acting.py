"""
Latencies that operators and agents notice, in the real service with many known workers.

A health query, a stored heartbeat, a nudge, a state change, and the event loop during a sweep.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from queenright.cli.jobs.service import tune_garbage_collector
from queenright.health.interventions.target import Target
from queenright.health.monitoring.heartbeat import Heartbeat
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import ModelReply
from queenright.runtime.llm.scripted_provider import ScriptedProvider
from queenright.server.build import build
from queenright.server.service import Service
from queenright.server.settings import load_settings
from tools.benchmarks.row import Row

FLEETS = (10_000, 100_000)
BREAKERS = 5_000
CONCURRENT = 100


def run() -> list[Row]:
    """Run all measurements, which take about two minutes."""
    tune_garbage_collector()
    return [row for workers in FLEETS for row in asyncio.run(_measure(workers))]


async def _measure(workers: int) -> list[Row]:
    with TemporaryDirectory() as folder:
        settings = load_settings(storage=Path(folder), health_monitoring={"intervention": {"enabled": False}})
        service = await build(settings)
        await service.start()
        try:
            _populate(service, workers)
            rows = [
                await _measure_health(service, workers),
                await _measure_heartbeat(service, workers),
                await _measure_concurrency(service, workers),
                *await _measure_nudges(service, workers),
                await _measure_transition(service, workers),
                await _measure_pause(service, workers),
            ]
        finally:
            await service.stop()
        return rows


def _populate(service: Service, workers: int) -> None:
    now = service.clock()
    for n in range(workers):
        start_data = {"start_records": True, "heartbeat_interval": 300}
        service.monitor.apply(_make_event(n, EventType.EXECUTION_STARTED, now, **start_data), now)
    for n in range(BREAKERS):
        service.breakers.get("tool_execution", f"agent-{n}", "search")


def _make_event(worker: int, type_: EventType, now: float, **data: object) -> AgentEvent:
    return AgentEvent(
        type=type_,
        time=now,
        agent_id=f"agent-{worker}",
        session_id=f"session-{worker}",
        incarnation_id="one",
        node_id="work",
        data=data,
    )


async def _measure_times(work: Callable[[int], Awaitable[object]], workers: Sequence[int]) -> list[float]:
    times = []
    for worker in workers:
        start = time.perf_counter()
        await work(worker)
        times.append((time.perf_counter() - start) * 1e3)
        await asyncio.sleep(0)
    return sorted(times)


def _make_row(name: str, workers: int, times: Sequence[float], budget: float) -> Row:
    p99 = times[int(0.99 * (len(times) - 1))]
    return Row(
        f"{name}, {workers:,} workers: median / p99 of {len(times)}",
        f"{times[len(times) // 2]:.2f} / {p99:.2f} ms",
        f"p99 ≤ {budget:g} ms",
        p99 <= budget,
    )


async def _measure_health(service: Service, workers: int) -> Row:
    random = Random(1)
    worker_numbers = [random.randrange(workers) for _ in range(1_000)]
    times = await _measure_times(lambda n: service.health.get_agent_health(f"agent-{n}"), worker_numbers)
    return _make_row(f"health of one worker ({BREAKERS:,} breakers known)", workers, times, 20)


def _make_heartbeat(worker: int) -> Heartbeat:
    return Heartbeat(agent_id=f"agent-{worker}", session_id=f"session-{worker}", phase="llm", token_count=7)


async def _measure_heartbeat(service: Service, workers: int) -> Row:
    times = await _measure_times(lambda n: service.health.record_heartbeat(_make_heartbeat(n)), range(1_000))
    return _make_row("heartbeat stored", workers, times, 5)


async def _measure_concurrency(service: Service, workers: int) -> Row:
    """Send heartbeats and health queries, ``CONCURRENT`` of them concurrently."""

    async def send_both(worker: int) -> float:
        start_time = time.perf_counter()
        await service.health.record_heartbeat(_make_heartbeat(worker))
        await service.health.get_agent_health(f"agent-{worker}")
        return (time.perf_counter() - start_time) * 1e3

    times = [
        seconds
        for start in range(0, 1_000, CONCURRENT)
        for seconds in await asyncio.gather(*(send_both(n) for n in range(start, start + CONCURRENT)))
    ]
    return _make_row(f"heartbeat and health query, {CONCURRENT} concurrently", workers, sorted(times), 100)


async def _measure_nudges(service: Service, workers: int) -> list[Row]:
    async def hang(*_: object) -> ModelReply:
        await asyncio.Event().wait()
        raise AssertionError

    graph = GraphSpec(
        id="hive",
        nodes=(NodeSpec(id="think", system_prompt="Think.", model_timeout_seconds=600),),
        entry_points=(EntryPointSpec(id="start", node_id="think"),),
    )
    service.runtime.add_graph(graph, model=ScriptedProvider([hang]), agent_id="bee")
    with service.bus.expect(EventType.LLM_CALL_STARTED, filter_agent="bee") as call_started:
        await service.runtime.trigger("start", {"message": "go"}, graph_id="hive")
        await call_started.within(30)
    injection_times = await _measure_times(lambda _: service.health.send_nudge("bee", "Get on."), range(100))
    target = Target(agent_id="agent-1", session_id="session-1", incarnation_id="one")
    await service.instructions.pull(target, 0)
    queue_times = await _measure_times(lambda _: service.health.send_nudge("agent-1", "Get on."), range(100))
    return [
        _make_row("nudge injected on the runtime", workers, injection_times, 50),
        _make_row("nudge queued until the worker fetches it", workers, queue_times, 50),
    ]


async def _measure_transition(service: Service, workers: int) -> Row:
    """Measure from the call that completes a loop until a subscriber receives the state change."""

    async def complete_loop(worker: int) -> None:
        call = {"tool": "search", "args_hash": "a", "result_hash": "b", "outcome": "ok"}
        agent = f"agent-{worker}"
        with service.bus.expect(EventType.HEALTH_STATE_CHANGED, filter_agent=agent) as expectation:
            now = service.clock()
            await service.ingest(
                [
                    _make_event(worker, EventType.TOOL_CALL_COMPLETED, now, **call, turn=turn)
                    for turn in range(3)
                ]
            )
            await expectation.within(30)

    times = await _measure_times(complete_loop, range(2_000, 2_200))
    return _make_row("state change durable and delivered", workers, times, 1_000)


async def _measure_pause(service: Service, workers: int) -> Row:
    """Measure the longest time for which a sweep blocks the event loop."""
    longest, is_done = 0.0, False

    async def watch() -> None:
        nonlocal longest
        previous_time = time.thread_time()
        while not is_done:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, previous_time = max(longest, now - previous_time), now

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await service.scheduler.sweep()
    is_done = True
    await watcher
    return Row(
        f"a sweep over {workers:,} workers: longest pause of the loop, CPU",
        f"{longest * 1e3:.1f} ms",
        "≤ 50 ms",
        longest <= 0.05,
    )
