from __future__ import annotations

import asyncio
import json
from pathlib import Path

from prometheus_client import CollectorRegistry

from queenright.instrumentation import Worker
from queenright.server.service import Service
from queenright.server.serving import serving
from queenright.server.settings import Settings

CLOSED_PORT_URL = "http://127.0.0.1:9"


def run_worker(storage: Path, endpoint: str, *, session: str, steps: int) -> None:
    """Run a worker that writes its step log, and sends telemetry to ``endpoint``."""
    with Worker(
        "scribe", session_id=session, endpoint=endpoint, storage=storage, registry=CollectorRegistry()
    ) as worker:
        for _ in range(steps):
            with worker.step("write") as step:
                with step.tool("draft", {"line": 1}) as call:
                    call.result("the same line")
                step.verdict("RETRY")


async def wait_for_steps(service: Service, *, at_least: int) -> int:
    for _ in range(3000):
        health = service.monitor.get("scribe")
        if health is not None and health.vitals.steps_total >= at_least:
            await asyncio.sleep(1.2)  # Wait for one more read of the log, which must find nothing new.
            return health.vitals.steps_total
        await asyncio.sleep(0.02)
    raise AssertionError(f"within 60 s: {at_least} steps")


async def test_step_log_alone_is_read_and_invalid_lines_are_skipped(
    settings: Settings, tmp_path: Path
) -> None:
    """B6: invalid lines are skipped. The other lines are read once, even across restarts."""
    agents = tmp_path / "agents"
    await asyncio.to_thread(run_worker, agents, CLOSED_PORT_URL, session="one", steps=4)
    log = agents / "sessions" / "one" / "logs" / "tool_logs.jsonl"
    lines = log.read_text("utf-8").splitlines()
    log.write_text("\n".join([*lines[:2], "{broken", "[]", "", *lines[2:]]) + "\n", encoding="utf-8")
    settings_with_log = settings.model_copy(update={"step_logs": (agents,)})

    async with serving(settings_with_log) as running:
        steps_before = await wait_for_steps(running.service, at_least=4)
    async with serving(settings_with_log) as running:
        steps_after = await wait_for_steps(running.service, at_least=4)

    assert len(lines) == 4
    assert all(json.loads(line)["verdict"] == "RETRY" for line in lines)
    assert (steps_before, steps_after) == (4, 4)


async def test_worker_that_sends_telemetry_and_writes_a_log_is_counted_once(
    settings: Settings, tmp_path: Path
) -> None:
    agents, other_steps = tmp_path / "agents", tmp_path / "elsewhere"
    settings_with_log = settings.model_copy(update={"step_logs": (agents,)})

    async with serving(settings_with_log) as running:
        await asyncio.to_thread(run_worker, other_steps, running.otlp_url, session="two", steps=5)
        step_count = await wait_for_steps(running.service, at_least=5)
        other_steps.rename(agents)
        steps = await wait_for_steps(running.service, at_least=5)

    assert (step_count, steps) == (5, 5)


async def test_unreadable_log_affects_no_other_and_invalid_lines_are_counted(
    settings: Settings, tmp_path: Path
) -> None:
    agents = tmp_path / "agents"
    (agents / "sessions" / "a-folder" / "logs" / "tool_logs.jsonl").mkdir(parents=True)
    await asyncio.to_thread(run_worker, agents, CLOSED_PORT_URL, session="three", steps=3)
    log = agents / "sessions" / "three" / "logs" / "tool_logs.jsonl"
    log.write_text("{broken\n" + log.read_text("utf-8") + "[]\n", encoding="utf-8")

    async with serving(settings.model_copy(update={"step_logs": (agents,)})) as running:
        steps = await wait_for_steps(running.service, at_least=3)
        ready = running.service.ready()
        page = (await running.service.metrics.render()).decode()

    assert steps == 3
    assert ready == []
    assert 'queenright_telemetry_dropped_total{signal="step_log"} 2.0' in page
