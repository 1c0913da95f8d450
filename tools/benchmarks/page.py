"""From a stall to Slack through the real Alertmanager; `/metrics`; the first page of the demo."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from queenright.instrumentation import Worker
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.settings import load_settings
from queenright.server.up import up
from queenright.server.up_options import DEMO_DEFAULTS, UpOptions
from tools.benchmarks.row import Row

STALL_SECONDS = 5.0
GROUP_WAIT = 1.0
AGENTS = 20
WORKERS = 10_000


def run() -> list[Row]:
    """Run all measurements."""
    return [
        *asyncio.run(_measure_stall_to_slack()),
        *asyncio.run(_measure_metrics_page()),
        _measure_first_page(),
    ]


async def _measure_stall_to_slack() -> list[Row]:
    stall = dict.fromkeys(("idle_seconds", "llm_seconds", "tool_seconds", "unknown_seconds"), STALL_SECONDS)
    # Without this, the stalls would be a storm, which is a single message; here, each must send its own.
    intervention = {"storm": {"workers": 10 * AGENTS}}
    health = DEMO_DEFAULTS["health_monitoring"] | {"stall": stall, "intervention": intervention}
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            defaults={"health_monitoring": health}, storage=Path(folder), http={"port": 0}, otlp={"port": 0}
        )
        options = UpOptions(demo=False, prometheus_port=0, alertmanager_port=0, receiver_port=0)
        async with up(settings, options, say=lambda line: None) as running:
            recorder = running.service.recorder
            assert recorder is not None
            assert running.alertmanager_url, "the program alertmanager is missing; `make test` downloads it"
            stop = threading.Event()
            threads = [
                threading.Thread(target=_work_and_hang, args=(f"agent-{n:02}", running.otlp_url, n / 4, stop))
                for n in range(AGENTS)
            ]
            for thread in threads:
                thread.start()
            crossings: dict[str, float] = {}
            deadline = time.monotonic() + 60
            while len(_find_pages(recorder.messages)) < AGENTS and time.monotonic() < deadline:
                for worker in running.service.workers():
                    since = min((f.since for f in worker.findings if f.kind.value == "stall"), default=None)
                    if since is not None:
                        crossings.setdefault(worker.vitals.agent_id, since + STALL_SECONDS)
                await asyncio.sleep(0.01)
            stop.set()
            pages = _find_pages(recorder.messages)
            for thread in threads:
                await asyncio.to_thread(thread.join)
    delays = sorted(pages[agent] - crossings[agent] - GROUP_WAIT for agent in pages if agent in crossings)
    if len(delays) < AGENTS:
        return [
            Row("stall -> Slack", f"only {len(delays)} of {AGENTS} arrived", "p99 <= 5 s + group_wait", False)
        ]
    text = f"median {statistics.median(delays):.2f} s, worst of {AGENTS} {delays[-1]:.2f} s"
    return [Row("stall threshold -> Slack, less group_wait", text, "p99 <= 5 s", delays[-1] <= 5)]


def _work_and_hang(agent: str, endpoint: str, after: float, stop: threading.Event) -> None:
    """Work for five seconds, longer than the start grace period, then hang in a tool."""
    with Worker(agent, endpoint=endpoint, registry=CollectorRegistry()) as worker:
        for n in range(10):
            with worker.step("work") as step:
                step.verdict("ACCEPT")
            stop.wait(0.5 + after / 10 if n < 9 else 0)
        with worker.step("work") as step, step.tool("dig"):
            stop.wait()


def _find_pages(messages: object) -> dict[str, float]:
    pages: dict[str, float] = {}
    for message in messages:  # type: ignore[attr-defined]  # the recorder's deque
        if message.channel == "slack" and message.status == "firing":
            pages.setdefault(message.title.split()[0], message.time)
    return pages


async def _measure_metrics_page() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        service = await build(load_settings(storage=Path(folder)))
        await service.start()
        now = time.time()
        data = [
            AgentEvent(type=EventType.EXECUTION_STARTED, time=now, agent_id=f"agent-{n}", session_id=f"s{n}")
            for n in range(WORKERS)
        ]
        await service.ingest(data)
        times, size = [], 0
        for n in range(10):
            start = time.perf_counter()
            size = len(await service.metrics.render(now=now + 10 * n))
            times.append(time.perf_counter() - start)
        await service.stop()
    slowest = max(times)
    text = f"{slowest * 1e3:.0f} ms, {size / 1e6:.2f} MB"
    ok = slowest <= 0.1 and size <= 1e6
    return [Row(f"/metrics with {WORKERS:,} workers", text, "<= 100 ms, <= 1 MB", ok)]


def _measure_first_page() -> Row:
    """Measure `queenright up` on a warm machine, from the command to the demo's first page."""
    ports = ["--port=0", "--otlp-port=0", "--prometheus-port=0", "--alertmanager-port=0", "--receiver-port=0"]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        process = subprocess.Popen(
            [Path(sys.executable).with_name("queenright"), "up", f"--storage={folder}/storage", *ports],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if "slack firing" in line:
                break
        elapsed = time.perf_counter() - start
        process.terminate()
        process.stdout.read()
        process.wait()
    return Row("queenright up -> first page", f"{elapsed:.1f} s", "<= 10 s", elapsed <= 10)
