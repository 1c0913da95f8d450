"""
Gemini CLI over real HTTP: monitored by hook calls and log records, controlled by responses to hook calls.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import httpx
import pytest

from queenright.server.serving import RunningService
from tests.clients.fixtures import FOLDER, Record, load_fixture

HOOK = "/hooks/gemini-cli?user=ada&host=laptop"
AGENT = "gemini-cli/ada@laptop/project"


def load_records(name: str) -> list[Record]:
    """Return the recorded requests, moved to the present."""
    fixture = load_fixture(FOLDER / "gemini-cli" / f"{name}.json")
    return list(fixture.moved(time.time() - fixture.ended_at))


def get_hook(name: str, number: int = 1) -> dict[str, Any]:
    """
    Return the first hook call with this name in a healthy session; each number gives it a separate identity.
    """
    body: dict[str, Any] = next(
        record.body
        for record in load_records("healthy")
        if record.path.startswith("/hooks/") and record.body["hook_event_name"] == name
    )
    if "tool_input" in body:
        body |= {"tool_input": {"command": f"cat notes-{number}.txt"}}
    return body


async def send(telemetry: httpx.AsyncClient, path: str, body: Any) -> dict[str, Any]:
    answer = await telemetry.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def replay(telemetry: httpx.AsyncClient, name: str, *, until: float = math.inf) -> None:
    for record in load_records(name):
        if record.at < until:
            await send(telemetry, HOOK if record.path.startswith("/hooks/") else record.path, record.body)


@pytest.fixture
async def telemetry(running: RunningService) -> Any:
    async with httpx.AsyncClient(base_url=running.otlp_url, verify=False, trust_env=False) as client:
        yield client


async def test_session_is_in_the_fleet_with_the_command_that_failed(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient, running: RunningService
) -> None:
    """B84, B89: from hook calls, log records and spans together."""
    await replay(telemetry, "healthy")

    [agent] = (await http.get("/api/agents")).json()["agents"]
    health = (await http.get(f"/api/agents/{AGENT}/health")).json()
    assert agent["agent_id"] == AGENT
    assert agent["framework"] == "gemini-cli"
    assert health["state"] == "healthy"
    [worker] = running.service.monitor.of_agent(AGENT)
    vitals = worker.vitals
    assert (vitals.steps_total, vitals.tool_calls_total, vitals.tokens) == (4, 3, 5100)


async def test_loop_is_found(telemetry: httpx.AsyncClient, running: RunningService) -> None:
    """B26: from hook calls and log records."""
    await replay(telemetry, "loop-unguarded", until=19.2)

    [worker] = running.service.monitor.of_agent(AGENT)
    assert "doom_loop" in {finding.kind for finding in worker.findings}


async def test_nudge_reaches_the_model_after_the_next_tool_and_once(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """B92: the nudge is in the response to a hook call."""
    for name in ("SessionStart", "BeforeAgent", "BeforeTool"):
        assert await send(telemetry, HOOK, get_hook(name)) == {}
    nudged = await http.post(f"/api/agents/{AGENT}/nudge", json={"message": "Read the log first."})
    assert nudged.status_code == 202, nudged.text

    given = await send(telemetry, HOOK, get_hook("AfterTool"))

    assert given["hookSpecificOutput"]["hookEventName"] == "AfterTool"
    assert "Read the log first." in given["hookSpecificOutput"]["additionalContext"]
    assert await send(telemetry, HOOK, get_hook("BeforeTool", 2)) == {}
    assert await send(telemetry, HOOK, get_hook("AfterTool", 2)) == {}


async def test_termination_ends_the_run_after_its_next_tool(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """B92: the response to a hook call stops the run."""
    for name in ("SessionStart", "BeforeAgent", "BeforeTool"):
        await send(telemetry, HOOK, get_hook(name))
    stopping = asyncio.create_task(
        http.post(f"/api/agents/{AGENT}/terminate", json={"reason": "It burns money."}, timeout=60)
    )
    answer: dict[str, Any] = {}
    for number in range(1200):
        answer = await send(telemetry, HOOK, get_hook("AfterTool", number))
        if answer:
            break
        await asyncio.sleep(0.05)

    assert answer["continue"] is False
    assert "It burns money." in answer["stopReason"]
    stopped = (await stopping).json()
    assert stopped["outcome"] == "done", stopped
