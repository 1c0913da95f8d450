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


async def test_received_telemetry_is_forwarded_to_a_second_service(
    settings: Settings, tmp_path: Path
) -> None:
    """The second service has the same data about the agent as the first."""
    async with serving(settings.model_copy(update={"storage": tmp_path / "far"})) as second_service:
        otlp = settings.otlp.model_copy(update={"forward": second_service.otlp_url})
        async with serving(settings.model_copy(update={"otlp": otlp})) as first_service:
            await asyncio.to_thread(run_worker, first_service.otlp_url)
            for _ in range(3000):
                travellers = [
                    running.service.monitor.get("traveller") for running in (first_service, second_service)
                ]
                steps = [health.vitals.steps_total if health else 0 for health in travellers]
                if steps == [3, 3]:
                    break
                await asyncio.sleep(0.02)

    assert steps == [3, 3]
