"""
Gemini CLI over real HTTP. Hook calls and log records monitor it, and responses to hook calls control it.
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

HOOK_PATH = "/hooks/gemini-cli?user=ada&host=laptop"
AGENT_ID = "gemini-cli/ada@laptop/project"


def load_records(name: str) -> list[Record]:
    """Return the recorded requests of a fixture, moved to the current time."""
    fixture = load_fixture(FOLDER / "gemini-cli" / f"{name}.json")
    return list(fixture.moved(time.time() - fixture.ended_at))


def get_hook(name: str, number: int = 1) -> dict[str, Any]:
    """
    Return the first hook call with this name in a healthy session. Each ``number`` gives it a different
    identity.
    """
    body: dict[str, Any] = next(
        record.body
        for record in load_records("healthy")
        if record.path.startswith("/hooks/") and record.body["hook_event_name"] == name
    )
    if "tool_input" in body:
        body |= {"tool_input": {"command": f"cat notes-{number}.txt"}}
    return body


async def send_request(telemetry: httpx.AsyncClient, path: str, body: Any) -> dict[str, Any]:
    answer = await telemetry.post(path, json=body)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


async def replay_records(telemetry: httpx.AsyncClient, name: str, *, stop_before: float = math.inf) -> None:
    for record in load_records(name):
        if record.at < stop_before:
            await send_request(
                telemetry, HOOK_PATH if record.path.startswith("/hooks/") else record.path, record.body
            )


@pytest.fixture
async def telemetry(running: RunningService) -> Any:
    async with httpx.AsyncClient(base_url=running.otlp_url, verify=False, trust_env=False) as client:
        yield client


async def test_session_is_listed_with_its_failed_command(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient, running: RunningService
) -> None:
    """B84, B89: hook calls, log records and spans give one session."""
    await replay_records(telemetry, "healthy")

    [agent] = (await http.get("/api/agents")).json()["agents"]
    health = (await http.get(f"/api/agents/{AGENT_ID}/health")).json()
    assert agent["agent_id"] == AGENT_ID
    assert agent["framework"] == "gemini-cli"
    assert health["state"] == "healthy"
    [worker] = running.service.monitor.of_agent(AGENT_ID)
    vitals = worker.vitals
    assert (vitals.steps_total, vitals.tool_calls_total, vitals.tokens) == (4, 3, 5100)


async def test_loop_is_found_from_hook_calls_and_log_records(
    telemetry: httpx.AsyncClient, running: RunningService
) -> None:
    """B26: the calls are read from hook calls and log records together."""
    await replay_records(telemetry, "loop-unguarded", stop_before=19.2)

    [worker] = running.service.monitor.of_agent(AGENT_ID)
    assert "doom_loop" in {finding.kind for finding in worker.findings}


async def test_nudge_reaches_the_model_once_after_the_next_tool(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """B92: the nudge is in the response to a hook call."""
    for name in ("SessionStart", "BeforeAgent", "BeforeTool"):
        assert await send_request(telemetry, HOOK_PATH, get_hook(name)) == {}
    nudge_response = await http.post(f"/api/agents/{AGENT_ID}/nudge", json={"message": "Read the log first."})
    assert nudge_response.status_code == 202, nudge_response.text

    response = await send_request(telemetry, HOOK_PATH, get_hook("AfterTool"))

    assert response["hookSpecificOutput"]["hookEventName"] == "AfterTool"
    assert "Read the log first." in response["hookSpecificOutput"]["additionalContext"]
    assert await send_request(telemetry, HOOK_PATH, get_hook("BeforeTool", 2)) == {}
    assert await send_request(telemetry, HOOK_PATH, get_hook("AfterTool", 2)) == {}


async def test_termination_ends_the_run_after_its_next_tool(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """B92: the response to a hook call stops the run."""
    for name in ("SessionStart", "BeforeAgent", "BeforeTool"):
        await send_request(telemetry, HOOK_PATH, get_hook(name))
    termination_task = asyncio.create_task(
        http.post(f"/api/agents/{AGENT_ID}/terminate", json={"reason": "It burns money."}, timeout=60)
    )
    answer: dict[str, Any] = {}
    for number in range(1200):
        answer = await send_request(telemetry, HOOK_PATH, get_hook("AfterTool", number))
        if answer:
            break
        await asyncio.sleep(0.05)

    assert answer["continue"] is False
    assert "It burns money." in answer["stopReason"]
    termination_response = (await termination_task).json()
    assert termination_response["outcome"] == "done", termination_response
