from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client import CollectorRegistry

from queenright.instrumentation import Worker
from queenright.server.serving import serving
from queenright.server.settings import Settings


def run_worker(endpoint: str) -> None:
    with Worker("traveller", endpoint=endpoint, registry=CollectorRegistry()) as worker:
        for _ in range(3):
            with worker.step("go") as step:
                step.verdict("ACCEPT")


async def test_received_telemetry_is_forwarded(settings: Settings, tmp_path: Path) -> None:
    """Two services in series: the second has the same data about the agent as the first."""
    async with serving(settings.model_copy(update={"storage": tmp_path / "far"})) as far:
        otlp = settings.otlp.model_copy(update={"forward": far.otlp_url})
        async with serving(settings.model_copy(update={"otlp": otlp})) as near:
            await asyncio.to_thread(run_worker, near.otlp_url)
            for _ in range(3000):
                found = [running.service.monitor.get("traveller") for running in (near, far)]
                steps = [health.vitals.steps_total if health else 0 for health in found]
                if steps == [3, 3]:
                    break
                await asyncio.sleep(0.02)

    assert steps == [3, 3]
