"""Secrets in the requests of users and workers are masked wherever they can be read later."""

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
        response = await http.get("/api/agents/looper/instructions", params=WORKER | {"wait": "1"})
        for instruction in response.json()["instructions"]:
            if instruction["kind"] == kind:
                return dict(instruction)
    raise AssertionError(f"no {kind} instruction arrived")


async def test_secret_in_a_request_is_masked_except_for_its_worker(
    running: RunningService, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    new_secrets, used_secrets = generate_secrets(), []
    answers: list[tuple[str, httpx.Response]] = []

    def make_secret_text() -> str:
        used_secrets.append(next(new_secrets))
        return f"my {used_secrets[-1]} key"

    async def post(path: str, method: str = "POST", **body: Any) -> httpx.Response:
        response = await http.request(method, path, json=body, timeout=30)
        answers.append((path, response))
        return response

    async def record_answer(instruction: dict[str, Any]) -> None:
        path = f"/api/agents/looper/instructions/{instruction['instruction_id']}/answer"
        actual = WORKER | {
            "outcome": "done",
            "detail": make_secret_text(),
            "checkpoint_id": make_secret_text(),
        }
        assert (await post(path, **actual)).status_code == 204

    await running.service.ingest(list(looping(running.service.clock())))
    await http.get("/api/agents/looper/instructions", params=WORKER)
    await post("/api/agents/nobody/nudge", message=make_secret_text(), by=make_secret_text())
    breaker = running.service.breakers.get("tool_execution", "looper", "search")
    while breaker.state.value == "closed":
        breaker.admit().record_failure(make_secret_text())

    heartbeat = {
        "phase": make_secret_text(),
        "progress_indicator": make_secret_text(),
        "task_id": "looper-session",
    }
    assert (
        await post("/api/heartbeats", agent_id="looper", **heartbeat, interval=make_secret_text())
    ).status_code == 400
    assert (await post("/api/heartbeats", agent_id="looper", **heartbeat)).status_code == 202
    nudge_response = await post("/api/agents/looper/nudge", message=make_secret_text(), by=make_secret_text())
    result = await wait_for_instruction(http, "nudge")
    assert used_secrets[-2] in result["message"]
    await record_answer(result)
    escalation_response = await post(
        "/api/agents/looper/escalate", reason=make_secret_text(), by=make_secret_text()
    )
    await post("/api/agents/looper/escalate", reason=make_secret_text(), by=make_secret_text())
    escalation = f"/api/escalations/{escalation_response.json()['escalation_id']}/decision"
    decision_response = await post(
        escalation, decision="more_time", reason=make_secret_text(), by=make_secret_text()
    )
    await post(escalation, decision="more_time", reason=make_secret_text(), by=make_secret_text())
    termination_task = asyncio.create_task(
        post("/api/agents/looper/terminate", reason=make_secret_text(), by=make_secret_text())
    )
    await record_answer(await wait_for_instruction(http, "terminate"))
    event = AgentEvent(
        type=EventType.EXECUTION_FAILED,
        time=running.service.clock(),
        agent_id="looper",
        data={"error_type": "terminated", "error": make_secret_text()},
        **WORKER,
    )
    await running.service.ingest([event])
    termination_response = await termination_task
    await post("/api/agents/looper/terminate", reason=make_secret_text(), by=make_secret_text())
    await post("/api/recoveries", task_id="looper-session", by=make_secret_text())
    await post("/api/recoveries", task_id=make_secret_text(), by=make_secret_text())
    await post("/api/breakers/tool_execution:looper:search/reset", by=make_secret_text())
    await post(f"/api/breakers/{make_secret_text()}/reset", by=make_secret_text())
    await post("/api/emergency-stop", "PUT", on=True, reason=make_secret_text(), by=make_secret_text())
    await post("/api/agents/looper/nudge", message=make_secret_text(), by=make_secret_text())
    await post("/api/emergency-stop", "PUT", on=False, reason=make_secret_text(), by=make_secret_text())
    for ticket in (await http.get("/api/tickets")).json()["tickets"]:
        await post(f"/api/tickets/{ticket['ticket_id']}/acknowledge", by=make_secret_text())
        await post(
            f"/api/tickets/{ticket['ticket_id']}/resolve", reason=make_secret_text(), by=make_secret_text()
        )
    for body in (
        {"reason": [make_secret_text()]},
        {"reason": "x", make_secret_text(): 1},
        {"reason": "x", "session_id": [make_secret_text()]},
    ):
        assert (await post("/api/agents/looper/terminate", **body)).status_code == 422
    answers += [(path, await http.get(path)) for path in READ_PATHS]
    answers += [
        (path, await http.get(path, params={"cursor": make_secret_text()})) for path in READ_PATHS[:4]
    ]

    assert [
        recorded_response.status_code
        for recorded_response in (
            nudge_response,
            escalation_response,
            decision_response,
            termination_response,
        )
    ] == [202] * 4
    leaks = [
        f"{path}: {output}"
        for path, recorded_response in answers
        for output in find_leaks(recorded_response.text, used_secrets)
    ]
    for recorded_response in await running.service.store.history(limit=10_000):
        if recorded_response.id != event.id:  # Skip telemetry, which a worker masks itself.
            leaks += [
                f"{recorded_response.type.value}: {output}"
                for output in find_leaks(str(recorded_response.data), used_secrets)
            ]
    for record in caplog.records:
        if record.name.startswith("queenright"):
            leaks += [f"{record.name}: {output}" for output in find_leaks(record.getMessage(), used_secrets)]
    assert "\n".join(leaks) == ""


def find_leaks(content: str, used_secrets: list[str]) -> list[str]:
    """Return the parts of a text that contain secrets."""
    return [
        content[max(0, position - 60) : position + 30]
        for secret in used_secrets
        if (position := content.find(secret)) >= 0
    ]
