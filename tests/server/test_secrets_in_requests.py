"""Secrets in the requests of users and workers are masked wherever they can be read again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings, looping

WORKER = {"session_id": "looper-session", "incarnation_id": "one"}
READ_PATHS = (
    "/api/agents",
    "/api/agents/health",
    "/api/agents/looper/health",
    "/api/agents/looper/history",
    "/api/agents/looper/heartbeat",
    "/api/interventions",
    "/api/escalations",
    "/api/emergency-stop",
    "/api/recoveries",
    "/api/recoveries/looper-session",
    "/api/breakers",
    "/api/tickets",
    "/api/notifications",
    "/api/status",
    "/metrics",
    "/",
)


def generate_secrets() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"sk-{number:04d}abcdefghijklmnopqrst"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return demo_settings(tmp_path / "storage", orchestrator="none")


async def wait_for_instruction(http: httpx.AsyncClient, kind: str) -> dict[str, Any]:
    for _ in range(20):
        answer = await http.get("/api/agents/looper/instructions", params=WORKER | {"wait": "1"})
        for found in answer.json()["instructions"]:
            if found["kind"] == kind:
                return dict(found)
    raise AssertionError(f"no {kind} came")


async def test_secret_in_any_text_is_masked_except_for_its_worker(
    running: RunningService, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    fresh, used = generate_secrets(), []
    answers: list[tuple[str, httpx.Response]] = []

    def secret() -> str:
        used.append(next(fresh))
        return f"my {used[-1]} key"

    async def post(path: str, method: str = "POST", **body: Any) -> httpx.Response:
        answer = await http.request(method, path, json=body, timeout=30)
        answers.append((path, answer))
        return answer

    async def record_answer(found: dict[str, Any]) -> None:
        path = f"/api/agents/looper/instructions/{found['instruction_id']}/answer"
        actual = WORKER | {"outcome": "done", "detail": secret(), "checkpoint_id": secret()}
        assert (await post(path, **actual)).status_code == 204

    await running.service.ingest(list(looping(running.service.clock())))
    await http.get("/api/agents/looper/instructions", params=WORKER)
    await post("/api/agents/nobody/nudge", message=secret(), by=secret())
    breaker = running.service.breakers.get("tool_execution", "looper", "search")
    while breaker.state.value == "closed":
        breaker.admit().record_failure(secret())

    beat = {"phase": secret(), "progress_indicator": secret(), "task_id": "looper-session"}
    assert (await post("/api/heartbeats", agent_id="looper", **beat, interval=secret())).status_code == 400
    assert (await post("/api/heartbeats", agent_id="looper", **beat)).status_code == 202
    nudged = await post("/api/agents/looper/nudge", message=secret(), by=secret())
    result = await wait_for_instruction(http, "nudge")
    assert used[-2] in result["message"]
    await record_answer(result)
    escalated = await post("/api/agents/looper/escalate", reason=secret(), by=secret())
    await post("/api/agents/looper/escalate", reason=secret(), by=secret())
    escalation = f"/api/escalations/{escalated.json()['escalation_id']}/decision"
    decided = await post(escalation, decision="more_time", reason=secret(), by=secret())
    await post(escalation, decision="more_time", reason=secret(), by=secret())
    stopping = asyncio.create_task(post("/api/agents/looper/terminate", reason=secret(), by=secret()))
    await record_answer(await wait_for_instruction(http, "terminate"))
    event = AgentEvent(
        type=EventType.EXECUTION_FAILED,
        time=running.service.clock(),
        agent_id="looper",
        data={"error_type": "terminated", "error": secret()},
        **WORKER,
    )
    await running.service.ingest([event])
    terminated = await stopping
    await post("/api/agents/looper/terminate", reason=secret(), by=secret())
    await post("/api/recoveries", task_id="looper-session", by=secret())
    await post("/api/recoveries", task_id=secret(), by=secret())
    await post("/api/breakers/tool_execution:looper:search/reset", by=secret())
    await post(f"/api/breakers/{secret()}/reset", by=secret())
    await post("/api/emergency-stop", "PUT", on=True, reason=secret(), by=secret())
    await post("/api/agents/looper/nudge", message=secret(), by=secret())
    await post("/api/emergency-stop", "PUT", on=False, reason=secret(), by=secret())
    for ticket in (await http.get("/api/tickets")).json()["tickets"]:
        await post(f"/api/tickets/{ticket['ticket_id']}/acknowledge", by=secret())
        await post(f"/api/tickets/{ticket['ticket_id']}/resolve", reason=secret(), by=secret())
    for body in (
        {"reason": [secret()]},
        {"reason": "x", secret(): 1},
        {"reason": "x", "session_id": [secret()]},
    ):
        assert (await post("/api/agents/looper/terminate", **body)).status_code == 422
    answers += [(path, await http.get(path)) for path in READ_PATHS]
    answers += [(path, await http.get(path, params={"cursor": secret()})) for path in READ_PATHS[:4]]

    assert [one.status_code for one in (nudged, escalated, decided, terminated)] == [202] * 4
    leaks = [f"{path}: {output}" for path, one in answers for output in find_leaks(one.text, used)]
    for one in await running.service.store.history(limit=10_000):
        if one.id != event.id:  # telemetry, which a worker masks itself
            leaks += [f"{one.type.value}: {output}" for output in find_leaks(str(one.data), used)]
    for record in caplog.records:
        if record.name.startswith("queenright"):
            leaks += [f"{record.name}: {output}" for output in find_leaks(record.getMessage(), used)]
    assert "\n".join(leaks) == ""


def find_leaks(text: str, used: list[str]) -> list[str]:
    """Return the places in a text that contain secrets."""
    return [
        text[max(0, position - 60) : position + 30] for secret in used if (position := text.find(secret)) >= 0
    ]
