"""The actions that a worker lists are the actions that the routes accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings
from tests.waiting import until

WAITING, FAILED = EventType.WORKER_WAITING, EventType.EXECUTION_FAILED
RUN_EVENTS = ["nudge", "escalate", "terminate"]
WORKER_STATES: dict[str, tuple[list[tuple[EventType, dict[str, Any]]], list[str]]] = {
    "working": ([], RUN_EVENTS),
    "waiting for a user": ([(WAITING, {"reason": "user_input", "question": "Which?"})], []),
    "asking permission": ([(WAITING, {"reason": "user_input", "tool": "Bash", "question": "ls"})], []),
    "waiting for sub-agents": ([(WAITING, {"reason": "children"})], []),
    "waiting to try again": ([(WAITING, {"reason": "backoff", "seconds": 60})], []),
    "held": ([(WAITING, {"reason": "held", "finding": "doom_loop"})], RUN_EVENTS),
    "paused": ([(EventType.EXECUTION_PAUSED, {})], []),
    "completed": ([(EventType.EXECUTION_COMPLETED, {})], []),
    "failed": ([(FAILED, {"error": "boom"})], ["recover"]),
    "cancelled": ([(FAILED, {"error": "stopped", "error_type": "cancelled"})], []),
    "terminated": ([(EventType.AGENT_TERMINATED, {})], ["recover"]),
    "lost": ([], [*RUN_EVENTS, "recover"]),
}


def make_settings(storage: Path, *, respawns: bool) -> Settings:
    """Return settings with or without a respawner."""
    base_settings = demo_settings(storage, orchestrator="none")
    health = base_settings.health_monitoring
    url = SecretStr("http://127.0.0.1:9/") if respawns else None
    recovery = health.recovery.model_copy(update={"webhook_url": url})
    return base_settings.model_copy(
        update={"health_monitoring": health.model_copy(update={"recovery": recovery})}
    )


async def enter_states(running: RunningService, http: httpx.AsyncClient) -> None:
    """Bring one worker into each state. The worker's name is the state."""
    clock_time = running.service.clock()
    worker = {"session_id": "s", "incarnation_id": "one"}
    start_event = (EventType.EXECUTION_STARTED, {"framework": "test", "start_records": True})
    await running.service.ingest(
        [
            AgentEvent(
                type=kind, time=clock_time, agent_id=state, session_id=state, incarnation_id="one", data=data
            )
            for state, (changes, _) in WORKER_STATES.items()
            for kind, data in (start_event, *changes)
            if state != "lost"
        ]
    )
    lost_worker = worker | {
        "agent_id": "lost",
        "session_id": "lost",
        "interval": 1,
        "timestamp": clock_time - 60,
    }
    assert (await http.post("/api/heartbeats", json=lost_worker)).status_code == 202
    await until(lambda: running.service.monitor.get("lost"), "the worker is known")


async def list_offered_actions(http: httpx.AsyncClient, agent: str) -> list[str]:
    actions: list[str] = (await http.get(f"/api/agents/{agent}/health")).json()["actions"]
    return actions


async def is_accepted(http: httpx.AsyncClient, agent: str, action: str) -> bool:
    if action == "recover":
        body: dict[str, Any] = {"task_id": agent, "from_start": True}
        response = await http.post("/api/recoveries", json=body)
    else:
        body = {} if action == "nudge" else {"reason": "r"}
        response = await http.post(f"/api/agents/{agent}/{action}", json=body)
    assert response.status_code in (202, 409), response.text
    return response.is_success and bool(response.json().get("accepted", True))


async def find_disagreements(http: httpx.AsyncClient) -> list[tuple[str, str, bool]]:
    """Return the actions that are listed but refused, or accepted but not listed."""
    return [
        (agent, action, is_offered)
        for agent in WORKER_STATES
        for action in ("nudge", "escalate", "escalate", "terminate", "recover", "recover")
        if (is_offered := action in await list_offered_actions(http, agent))
        != await is_accepted(http, agent, action)
    ]


@pytest.mark.parametrize("respawns", [True, False])
async def test_worker_lists_the_actions_that_its_routes_accept(tmp_path: Path, respawns: bool) -> None:
    async with (
        serving(make_settings(tmp_path / "storage", respawns=respawns)) as running,
        httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=60) as http,
    ):
        await enter_states(running, http)
        await http.put("/api/emergency-stop", json={"on": True, "reason": "drill", "by": "ada"})

        assert {state: await list_offered_actions(http, state) for state in WORKER_STATES} == {
            state: [] for state in WORKER_STATES
        }
        assert await find_disagreements(http) == []

        await http.put("/api/emergency-stop", json={"on": False, "reason": "over", "by": "ada"})
        impossible_actions = set() if respawns else {"recover"}

        assert {state: await list_offered_actions(http, state) for state in WORKER_STATES} == {
            state: [action for action in possible_actions if action not in impossible_actions]
            for state, (_, possible_actions) in WORKER_STATES.items()
        }
        assert await find_disagreements(http) == []
