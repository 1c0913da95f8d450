"""The health monitoring API over HTTP, on a service with real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.health.interventions.target import Target
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings, looping
from tests.waiting import until

WORKER = {"session_id": "looper-session", "incarnation_id": "one"}
LOOPER = Target(agent_id="looper", **WORKER)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which only the test decides. Otherwise the queen would decide immediately."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


async def start_looper(running: RunningService, **loop_options: Any) -> None:
    await running.service.ingest(list(looping(running.service.clock(), **loop_options)))


async def report_event(running: RunningService, kind: EventType, **data: object) -> None:
    event = AgentEvent(type=kind, time=running.service.clock(), agent_id="looper", data=data, **WORKER)
    await running.service.ingest([event])


async def fetch_instructions(
    http: httpx.AsyncClient, wait: float = 0, **identity: str
) -> list[dict[str, Any]]:
    params: dict[str, str | float] = {**WORKER, "wait": wait, **identity}
    response = await http.get("/api/agents/looper/instructions", params=params)
    assert response.status_code == 200, response.text
    instructions: list[dict[str, Any]] = response.json()["instructions"]
    return instructions


async def post_answer(
    http: httpx.AsyncClient, instruction_id: str, outcome: str = "done", **fields: Any
) -> int:
    path = f"/api/agents/looper/instructions/{instruction_id}/answer"
    return (await http.post(path, json=WORKER | {"outcome": outcome} | fields)).status_code


# -- health -------------------------------------------------------------------------------------


async def test_health_of_a_worker_has_state_signals_metrics_and_breakers(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """002 §11: the health and the signals of a worker can be read while it runs."""
    await start_looper(running, times=3)

    health = (await http.get("/api/agents/looper/health")).json()

    assert (health["agent_id"], health["task_id"]) == ("looper", "looper-session")
    assert health["metrics"]["tool_call_count"] == 3
    assert {"uptime_seconds", "token_count", "error_count", "intervention_count"} <= health["metrics"].keys()
    assert {signal["verdict"] for signal in health["signals"]} <= {"ok", "warning", "bad", "unknown"}
    assert health["circuit_breakers"] == []
    assert health["state"] in ("healthy", "degraded", "stuck")


async def test_agent_name_may_contain_slashes(running: RunningService, http: httpx.AsyncClient) -> None:
    await start_looper(running, agent="team/looper", times=1)

    health = await http.get("/api/agents/team%2Flooper/health")

    assert health.json()["agent_id"] == "team/looper"


async def test_history_lists_state_changes_and_interventions(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await start_looper(running)
    await fetch_instructions(http)
    await http.post("/api/agents/looper/nudge")

    history = (await http.get("/api/agents/looper/history", params={"seconds": 60})).json()["history"]

    kinds = [entry["type"] for entry in history]
    assert "health_state_changed" in kinds
    assert "nudge_sent" in kinds


async def test_history_lists_failed_interventions(running: RunningService, http: httpx.AsyncClient) -> None:
    await start_looper(running)
    unreached_response = await http.post("/api/agents/looper/nudge", json={"by": "ada"})
    await http.put("/api/emergency-stop", json={"on": True, "reason": "drill", "by": "bob"})
    refused_response = await http.post(
        "/api/agents/looper/terminate", json={"reason": "it loops", "by": "bob"}
    )

    history = (await http.get("/api/agents/looper/history", params={"seconds": 60})).json()["history"]

    assert (unreached_response.json()["outcome"], refused_response.status_code) == ("unreachable", 409)
    interventions = [event["data"] for event in history if event["type"] == "intervention_recorded"]
    assert [
        (intervention["kind"], intervention["outcome"], intervention["by"]) for intervention in interventions
    ][-2:] == [
        ("nudge", "unreachable", "ada"),
        ("terminate", "refused", "bob"),
    ]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e12", "x"])
async def test_history_of_an_invalid_period_is_rejected(idle_http: httpx.AsyncClient, seconds: str) -> None:
    response = await idle_http.get("/api/agents/looper/history", params={"seconds": seconds})

    assert response.status_code == 422


# -- heartbeats ---------------------------------------------------------------------------------


async def test_received_heartbeat_can_be_read(running: RunningService, http: httpx.AsyncClient) -> None:
    """002 §11: any agent can send heartbeats over plain HTTP."""
    heartbeat = {"agentId": "bee", "taskId": "nectar", "tokenCount": 12, "phase": "search", "sessionId": "s"}

    response = await http.post("/api/heartbeats", json=heartbeat)
    last_heartbeat = (await http.get("/api/agents/bee/heartbeat")).json()

    assert response.status_code == 202
    assert (last_heartbeat["agent_id"], last_heartbeat["task_id"], last_heartbeat["token_count"]) == (
        "bee",
        "nectar",
        12,
    )
    assert running.service.monitor.get("bee", "s") is not None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"agent_id": ""}', b'{"agent_id": "looper", "token'])
async def test_invalid_heartbeat_is_rejected_without_effect(
    running: RunningService, http: httpx.AsyncClient, body: bytes
) -> None:
    """B68: a damaged heartbeat never makes a worker look dead."""
    await start_looper(running, times=1)
    health_before = (await http.get("/api/agents/looper/health")).json()

    response = await http.post("/api/heartbeats", content=body)

    health_after = (await http.get("/api/agents/looper/health")).json()
    assert response.status_code == 400
    assert response.json()["title"]
    assert (health_after["state"], health_after["last_heartbeat"]) == (
        health_before["state"],
        health_before["last_heartbeat"],
    )


async def test_missing_heartbeat_is_404_with_a_message(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await start_looper(running, times=1)

    response = await http.get("/api/agents/looper/heartbeat")

    assert response.status_code == 404
    assert "no heartbeat" in response.json()["title"]


# -- instructions -------------------------------------------------------------------------------


async def test_nudge_reaches_a_worker_that_fetches_instructions(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """002 §11: a nudge reaches an agent in another process."""
    await start_looper(running, times=3)
    poll_task = asyncio.create_task(fetch_instructions(http, wait=30))
    await until(lambda: running.service.instructions.can_reach(LOOPER), "the worker polls")

    nudge_response = await http.post(
        "/api/agents/looper/nudge", json={"message": "What blocks you?", "by": "ada"}
    )

    [instruction] = await poll_task
    assert nudge_response.status_code == 202
    assert (nudge_response.json()["delivered"], nudge_response.json()["outcome"]) == (True, "queued")
    assert (instruction["kind"], instruction["message"]) == ("nudge", "What blocks you?")
    assert await post_answer(http, instruction["instruction_id"]) == 204
    assert await post_answer(http, instruction["instruction_id"]) == 204
    assert await post_answer(http, instruction["instruction_id"], "failed") == 409
    assert await fetch_instructions(http) == []


async def test_other_incarnation_gets_no_instruction_and_cannot_answer(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B67: a nudge is for one incarnation of a worker."""
    await start_looper(running, times=3)
    await fetch_instructions(http)
    nudge = (await http.post("/api/agents/looper/nudge")).json()

    status = await post_answer(http, nudge["intervention_id"], incarnation_id="two")
    instructions = await fetch_instructions(http, incarnation_id="two")

    assert status == 409
    assert instructions == []


async def test_answer_to_an_unknown_instruction_is_404(idle_http: httpx.AsyncClient) -> None:
    assert await post_answer(idle_http, "none") == 404


@pytest.mark.parametrize(
    "fields", [{"outcome": "maybe"}, {"extra": 1}, {"detail": "x" * 2001}, {"session_id": None}]
)
async def test_invalid_answer_is_rejected(idle_http: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    assert await post_answer(idle_http, "none", **fields) == 422


async def test_worker_that_fetches_no_instructions_is_reported_as_unreachable(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await start_looper(running, times=3)

    response = await http.post("/api/agents/looper/nudge")

    assert response.status_code == 202
    assert (response.json()["delivered"], response.json()["outcome"]) == (False, "unreachable")
    assert "on_nudge" in response.json()["detail"]


async def test_worker_that_fetches_instructions_is_terminated_with_its_checkpoint(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """002 §11: termination stops an agent and keeps its state."""
    await start_looper(running, times=3)
    await fetch_instructions(http)
    termination_task = asyncio.create_task(
        http.post("/api/agents/looper/terminate", json={"reason": "it loops"})
    )
    [instruction] = await fetch_instructions(http, wait=30)

    await post_answer(http, instruction["instruction_id"], checkpoint_id="cp-7")

    termination = (await termination_task).json()
    interventions = (await http.get("/api/interventions", params={"agent_id": "looper"})).json()[
        "interventions"
    ]
    assert (instruction["kind"], instruction["message"]) == ("terminate", "it loops")
    assert (termination["terminated"], termination["checkpoint_id"]) == (True, "cp-7")
    assert [(item["kind"], item["outcome"]) for item in interventions] == [("terminate", "done")]


async def test_long_poll_does_not_delay_the_stop_of_the_service(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    poll_task = asyncio.create_task(fetch_instructions(http, wait=60))
    await until(lambda: running.service.instructions.can_reach(LOOPER), "the worker polls")

    running.service.stopping.set()

    assert await poll_task == []


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/agents/nobody/health", None),
        ("GET", "/api/agents/nobody/heartbeat", None),
        ("POST", "/api/agents/nobody/nudge", {}),
        ("POST", "/api/agents/nobody/escalate", {"reason": "r"}),
        ("POST", "/api/agents/nobody/terminate", {"reason": "r"}),
        ("POST", "/api/escalations/none/decision", {"decision": "terminate"}),
        ("GET", "/api/breakers/none", None),
        ("POST", "/api/breakers/none/reset", None),
        ("GET", "/api/recoveries/none", None),
        ("POST", "/api/recoveries", {"task_id": "none"}),
    ],
)
async def test_unknown_worker_is_404_with_a_message(
    idle_http: httpx.AsyncClient, method: str, path: str, body: object
) -> None:
    response = await idle_http.request(method, path, json=body)

    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert "no" in response.json()["title"]


@pytest.mark.parametrize(
    ("path", "body", "expected_name"),
    [
        ("/api/agents/looper/terminate", {}, "reason"),
        ("/api/agents/looper/terminate", {"reason": " "}, "reason"),
        ("/api/agents/looper/terminate", {"reason": "x" * 2001}, "reason"),
        ("/api/agents/looper/nudge", {"mesage": "hi"}, "mesage"),
        ("/api/agents/looper/nudge", {"by": ""}, "by"),
        ("/api/escalations/e/decision", {"decision": "kill"}, "decision"),
        ("/api/escalations/e/decision", {"decision": "more_time", "more_time_seconds": -1}, "more_time"),
        ("/api/recoveries", {"task_id": ""}, "task_id"),
    ],
)
async def test_impossible_request_is_rejected_with_the_field(
    idle_http: httpx.AsyncClient, path: str, body: dict[str, Any], expected_name: str
) -> None:
    response = await idle_http.post(path, json=body)

    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["title"].startswith(expected_name)


@pytest.mark.parametrize("action", ["nudge", "escalate", "terminate"])
async def test_waiting_worker_is_not_acted_on(
    running: RunningService, http: httpx.AsyncClient, action: str
) -> None:
    """B69: each request passes the guard."""
    await start_looper(running, times=1)
    await report_event(running, EventType.WORKER_WAITING, reason="user_input")

    response = await http.post(
        f"/api/agents/looper/{action}", json={} if action == "nudge" else {"reason": "r"}
    )

    assert response.status_code == 409
    assert "user_input" in response.json()["reason"]


@pytest.mark.parametrize(
    ("state", "possible_actions"),
    [
        (None, {"nudge", "escalate", "terminate"}),
        ((EventType.WORKER_WAITING, {"reason": "user_input"}), set()),
        (
            (EventType.WORKER_WAITING, {"reason": "held", "finding": "doom_loop"}),
            {"nudge", "escalate", "terminate"},
        ),
        ((EventType.EXECUTION_PAUSED, {}), set()),
        ((EventType.EXECUTION_COMPLETED, {}), set()),
        ((EventType.EXECUTION_FAILED, {"error": "boom"}), set()),
    ],
)
async def test_listed_actions_are_not_refused(
    running: RunningService,
    http: httpx.AsyncClient,
    state: tuple[EventType, dict[str, Any]] | None,
    possible_actions: set[str],
) -> None:
    await start_looper(running, times=12)
    await until(lambda: running.service.tickets.open_tickets(), "the ticket is open")
    if state is not None:
        await report_event(running, state[0], **state[1])

    health = (await http.get("/api/agents/looper/health")).json()
    [ticket] = (await http.get("/api/tickets")).json()["tickets"]
    items = (await http.get("/api/attention")).json()["items"]
    path, mismatches = f"/api/tickets/{ticket['ticket_id']}", []
    for action in ("dismiss", "resolve", "acknowledge", "unacknowledge"):
        is_listed = action in (await http.get(path)).json()["actions"]
        reason = {"reason": "r"} if action in ("dismiss", "resolve") else {}
        response = await http.post(f"{path}/{action}", json=reason)
        if is_listed != response.is_success:
            mismatches.append((action, is_listed, response.text))

    can_stop = "terminate" in possible_actions
    assert set(health["actions"]) == possible_actions
    assert ("terminate" in ticket["actions"]) == can_stop
    assert all(("terminate" in item["options"]) == can_stop for item in items if item["kind"] == "ticket")
    assert mismatches == []


async def test_running_worker_cannot_be_recovered(running: RunningService, http: httpx.AsyncClient) -> None:
    await start_looper(running, times=1)

    response = await http.post("/api/recoveries", json={"task_id": "looper-session"})

    assert response.status_code == 409
    assert "running" in response.json()["reason"]


async def test_emergency_stop_blocks_actions_but_not_monitoring(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B71: no worker is acted on, but monitoring continues."""
    put = await http.put("/api/emergency-stop", json={"on": True, "reason": "drill", "by": "ada"})
    await start_looper(running)

    nudge_response = await http.post("/api/agents/looper/nudge")
    state = (await http.get("/api/emergency-stop")).json()
    health = (await http.get("/api/agents/looper/health")).json()
    released_state = await http.put("/api/emergency-stop", json={"on": False, "reason": "over"})

    assert put.status_code == 200
    assert nudge_response.status_code == 409
    assert "drill" in nudge_response.json()["reason"]
    assert (state["on"], state["by"], state["reason"]) == (True, "ada", "drill")
    assert health["state"] == "stuck"
    assert released_state.json()["on"] is False


@pytest.mark.parametrize("message", ["", " ", "\n\t "])
async def test_empty_nudge_is_rejected(
    running: RunningService, http: httpx.AsyncClient, message: str
) -> None:
    await start_looper(running)

    response = await http.post("/api/agents/looper/nudge", json={"message": message})

    assert response.status_code == 422
    assert "message" in response.json()["title"]


async def test_control_characters_are_removed_from_a_name(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    body = {"on": True, "reason": "drill", "by": "\x1b[31mada\x07\r\nlovelace\u202e"}

    state = (await http.put("/api/emergency-stop", json=body)).json()
    blank = await http.put("/api/emergency-stop", json=body | {"by": "\x07 \n"})

    assert state["by"] == "ada lovelace"
    assert blank.status_code == 422


async def test_recovery_during_the_emergency_stop_is_refused_with_a_remedy(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await start_looper(running)
    await http.put("/api/emergency-stop", json={"on": True, "reason": "drill", "by": "ada"})

    error = (await http.post("/api/recoveries", json={"task_id": "looper-session"})).json()

    assert "(set by ada at " in error["reason"]
    assert error["reason"].endswith("queenright stop-acting off")


# -- escalations, breakers ----------------------------------------------------------------------


async def test_escalation_is_listed_and_can_be_decided_once(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await start_looper(running, times=3)
    escalation = (await http.post("/api/agents/looper/escalate", json={"reason": "odd"})).json()
    path = f"/api/escalations/{escalation['escalation_id']}/decision"

    [pending_escalation] = (await http.get("/api/escalations", params={"open": True})).json()["escalations"]
    response = await http.post(path, json={"decision": "more_time", "more_time_seconds": 60, "by": "ada"})
    repeated_response = await http.post(path, json={"decision": "terminate"})
    id_prefix = escalation["escalation_id"][:8]
    response_by_prefix = await http.post(
        f"/api/escalations/{id_prefix}/decision", json={"decision": "terminate"}
    )

    assert (pending_escalation["agent_id"], pending_escalation["reason"], pending_escalation["status"]) == (
        "looper",
        "odd",
        "pending",
    )
    assert response.status_code == 202
    assert (response.json()["decision"], response.json()["decided_by"]) == ("more_time", "ada")
    assert (repeated_response.status_code, response_by_prefix.status_code) == (409, 409)
    assert response_by_prefix.json()["title"] == repeated_response.json()["title"]
    assert (await http.get("/api/escalations", params={"open": True})).json()["escalations"] == []


async def test_open_breaker_is_listed_and_can_be_reset_by_a_person(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """002 §11: an open breaker is listed, and can be reset."""
    breaker = running.service.breakers.get("tool_execution", "looper", "search")
    await start_looper(running, times=1)
    for _ in range(10):
        try:
            breaker.call(lambda: 1 // 0)
        except Exception:
            continue

    [listed_breaker] = (await http.get("/api/breakers")).json()["breakers"]
    health = (await http.get("/api/agents/looper/health")).json()
    reset_response = await http.post("/api/breakers/tool_execution:looper:search/reset", json={"by": "ada"})

    assert (listed_breaker["name"], listed_breaker["state"]) == ("tool_execution:looper:search", "open")
    assert [breaker_name["name"] for breaker_name in health["circuit_breakers"]] == [listed_breaker["name"]]
    assert (reset_response.status_code, reset_response.json()["state"]) == (200, "closed")


async def test_breaker_of_a_workers_process_is_listed_with_its_session(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    running.service.breakers.get("tool_execution", "looper", "search")
    await start_looper(running, times=1)
    await report_event(running, EventType.BREAKER_REPORTED, name="external_api::maps", to="open")

    pages = [(await http.get("/api/breakers", params={"limit": 1})).json()]
    pages.append((await http.get("/api/breakers", params={"limit": 1, "cursor": pages[0]["next"]})).json())
    [open_breaker] = (await http.get("/api/breakers", params={"open": True})).json()["breakers"]
    health = (await http.get("/api/agents/looper/health")).json()
    reset_response = await http.post(f"/api/breakers/{open_breaker['name']}/reset")
    await report_event(running, EventType.BREAKER_REPORTED, name="external_api::maps", to="closed")

    name = f"process:looper:{WORKER['session_id']}:external_api::maps"
    assert [row["name"] for page in pages for row in page["breakers"]] == [
        name,
        "tool_execution:looper:search",
    ]
    assert (open_breaker["name"], open_breaker["state"], open_breaker["session_id"]) == (
        name,
        "open",
        WORKER["session_id"],
    )
    assert open_breaker["name"] in [breaker_name["name"] for breaker_name in health["circuit_breakers"]]
    assert (reset_response.status_code, "when a probe there succeeds" in reset_response.text) == (409, True)
    assert (await http.get("/api/breakers", params={"open": True})).json()["breakers"] == []
