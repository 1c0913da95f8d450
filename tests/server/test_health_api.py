"""The health layer over HTTP, on a service with real sockets."""

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
    """Return settings with which only the test decides; otherwise the queen would immediately."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


async def start_looper(running: RunningService, **how: Any) -> None:
    await running.service.ingest(list(looping(running.service.clock(), **how)))


async def report_event(running: RunningService, kind: EventType, **data: object) -> None:
    event = AgentEvent(type=kind, time=running.service.clock(), agent_id="looper", data=data, **WORKER)
    await running.service.ingest([event])


async def fetch_instructions(http: httpx.AsyncClient, wait: float = 0, **who: str) -> list[dict[str, Any]]:
    params: dict[str, str | float] = {**WORKER, "wait": wait, **who}
    answer = await http.get("/api/agents/looper/instructions", params=params)
    assert answer.status_code == 200, answer.text
    instructions: list[dict[str, Any]] = answer.json()["instructions"]
    return instructions


async def post_answer(
    http: httpx.AsyncClient, instruction_id: str, outcome: str = "done", **more: Any
) -> int:
    path = f"/api/agents/looper/instructions/{instruction_id}/answer"
    return (await http.post(path, json=WORKER | {"outcome": outcome} | more)).status_code


# -- health -------------------------------------------------------------------------------------


async def test_workers_health_has_state_signals_metrics_and_breakers(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """002 §11: a worker's health and its signals can be read while it runs."""
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
    unreached = await http.post("/api/agents/looper/nudge", json={"by": "ada"})
    await http.put("/api/emergency-stop", json={"on": True, "reason": "drill", "by": "bob"})
    refused = await http.post("/api/agents/looper/terminate", json={"reason": "it loops", "by": "bob"})

    history = (await http.get("/api/agents/looper/history", params={"seconds": 60})).json()["history"]

    assert (unreached.json()["outcome"], refused.status_code) == ("unreachable", 409)
    interventions = [one["data"] for one in history if one["type"] == "intervention_recorded"]
    assert [
        (intervention["kind"], intervention["outcome"], intervention["by"]) for intervention in interventions
    ][-2:] == [
        ("nudge", "unreachable", "ada"),
        ("terminate", "refused", "bob"),
    ]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e12", "x"])
async def test_history_without_a_period_is_refused(idle_http: httpx.AsyncClient, seconds: str) -> None:
    response = await idle_http.get("/api/agents/looper/history", params={"seconds": seconds})

    assert response.status_code == 422


# -- heartbeats ---------------------------------------------------------------------------------


async def test_received_heartbeat_is_readable(running: RunningService, http: httpx.AsyncClient) -> None:
    """002 §11: heartbeats of any agent, over plain HTTP."""
    sent = {"agentId": "bee", "taskId": "nectar", "tokenCount": 12, "phase": "search", "sessionId": "s"}

    accepted = await http.post("/api/heartbeats", json=sent)
    last = (await http.get("/api/agents/bee/heartbeat")).json()

    assert accepted.status_code == 202
    assert (last["agent_id"], last["task_id"], last["token_count"]) == ("bee", "nectar", 12)
    assert running.service.monitor.get("bee", "s") is not None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"agent_id": ""}', b'{"agent_id": "looper", "token'])
async def test_invalid_heartbeat_is_refused_and_changes_nothing(
    running: RunningService, http: httpx.AsyncClient, body: bytes
) -> None:
    """B68: a damaged heartbeat never makes a worker look dead."""
    await start_looper(running, times=1)
    before = (await http.get("/api/agents/looper/health")).json()

    response = await http.post("/api/heartbeats", content=body)

    after = (await http.get("/api/agents/looper/health")).json()
    assert response.status_code == 400
    assert response.json()["title"]
    assert (after["state"], after["last_heartbeat"]) == (before["state"], before["last_heartbeat"])


async def test_missing_heartbeat_is_404_with_a_message(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await start_looper(running, times=1)

    response = await http.get("/api/agents/looper/heartbeat")

    assert response.status_code == 404
    assert "no heartbeat" in response.json()["title"]


# -- instructions -------------------------------------------------------------------------------


async def test_nudge_reaches_a_worker_that_fetches(running: RunningService, http: httpx.AsyncClient) -> None:
    """002 §11: a nudge reaches an agent in another process."""
    await start_looper(running, times=3)
    polling = asyncio.create_task(fetch_instructions(http, wait=30))
    await until(lambda: running.service.instructions.can_reach(LOOPER), "the worker polls")

    nudged = await http.post("/api/agents/looper/nudge", json={"message": "What blocks you?", "by": "ada"})

    [instruction] = await polling
    assert nudged.status_code == 202
    assert (nudged.json()["delivered"], nudged.json()["outcome"]) == (True, "queued")
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
    nudged = (await http.post("/api/agents/looper/nudge")).json()

    status = await post_answer(http, nudged["intervention_id"], incarnation_id="two")
    instructions = await fetch_instructions(http, incarnation_id="two")

    assert status == 409
    assert instructions == []


async def test_answer_to_nothing_is_a_404(idle_http: httpx.AsyncClient) -> None:
    assert await post_answer(idle_http, "none") == 404


@pytest.mark.parametrize(
    "more", [{"outcome": "maybe"}, {"extra": 1}, {"detail": "x" * 2001}, {"session_id": None}]
)
async def test_invalid_answer_is_refused(idle_http: httpx.AsyncClient, more: dict[str, Any]) -> None:
    assert await post_answer(idle_http, "none", **more) == 422


async def test_unreachable_worker_is_reported(running: RunningService, http: httpx.AsyncClient) -> None:
    await start_looper(running, times=3)

    nudged = await http.post("/api/agents/looper/nudge")

    assert nudged.status_code == 202
    assert (nudged.json()["delivered"], nudged.json()["outcome"]) == (False, "unreachable")
    assert "on_nudge" in nudged.json()["detail"]


async def test_fetching_worker_is_terminated_and_reports_its_checkpoint(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """002 §11: termination stops an agent and keeps its state."""
    await start_looper(running, times=3)
    await fetch_instructions(http)
    stopping = asyncio.create_task(http.post("/api/agents/looper/terminate", json={"reason": "it loops"}))
    [instruction] = await fetch_instructions(http, wait=30)

    await post_answer(http, instruction["instruction_id"], checkpoint_id="cp-7")

    done = (await stopping).json()
    listed = (await http.get("/api/interventions", params={"agent_id": "looper"})).json()["interventions"]
    assert (instruction["kind"], instruction["message"]) == ("terminate", "it loops")
    assert (done["terminated"], done["checkpoint_id"]) == (True, "cp-7")
    assert [(item["kind"], item["outcome"]) for item in listed] == [("terminate", "done")]


async def test_long_poll_does_not_delay_a_stop(running: RunningService, http: httpx.AsyncClient) -> None:
    polling = asyncio.create_task(fetch_instructions(http, wait=60))
    await until(lambda: running.service.instructions.can_reach(LOOPER), "the worker polls")

    running.service.stopping.set()

    assert await polling == []


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
    ("path", "body", "named"),
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
async def test_impossible_request_is_refused_by_field(
    idle_http: httpx.AsyncClient, path: str, body: dict[str, Any], named: str
) -> None:
    response = await idle_http.post(path, json=body)

    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["title"].startswith(named)


@pytest.mark.parametrize("action", ["nudge", "escalate", "terminate"])
async def test_waiting_worker_is_not_acted_on_with_a_reason(
    running: RunningService, http: httpx.AsyncClient, action: str
) -> None:
    """B69: every request passes the guard."""
    await start_looper(running, times=1)
    await report_event(running, EventType.WORKER_WAITING, reason="user_input")

    response = await http.post(
        f"/api/agents/looper/{action}", json={} if action == "nudge" else {"reason": "r"}
    )

    assert response.status_code == 409
    assert "user_input" in response.json()["reason"]


@pytest.mark.parametrize(
    ("state", "possible"),
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
async def test_possible_actions_are_not_refused(
    running: RunningService,
    http: httpx.AsyncClient,
    state: tuple[EventType, dict[str, Any]] | None,
    possible: set[str],
) -> None:
    await start_looper(running, times=12)
    await until(lambda: running.service.tickets.open_tickets(), "the ticket")
    if state is not None:
        await report_event(running, state[0], **state[1])

    health = (await http.get("/api/agents/looper/health")).json()
    [ticket] = (await http.get("/api/tickets")).json()["tickets"]
    items = (await http.get("/api/attention")).json()["items"]
    path, wrong = f"/api/tickets/{ticket['ticket_id']}", []
    for action in ("dismiss", "resolve", "acknowledge", "unacknowledge"):
        offered = action in (await http.get(path)).json()["actions"]
        reason = {"reason": "r"} if action in ("dismiss", "resolve") else {}
        answer = await http.post(f"{path}/{action}", json=reason)
        if offered != answer.is_success:
            wrong.append((action, offered, answer.text))

    can_stop = "terminate" in possible
    assert set(health["actions"]) == possible
    assert ("terminate" in ticket["actions"]) == can_stop
    assert all(("terminate" in item["options"]) == can_stop for item in items if item["kind"] == "ticket")
    assert wrong == []


async def test_running_worker_is_not_recovered(running: RunningService, http: httpx.AsyncClient) -> None:
    await start_looper(running, times=1)

    response = await http.post("/api/recoveries", json={"task_id": "looper-session"})

    assert response.status_code == 409
    assert "running" in response.json()["reason"]


async def test_emergency_stop_blocks_actions_but_not_monitoring(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B71: no worker is acted on, and monitoring continues."""
    put = await http.put("/api/emergency-stop", json={"on": True, "reason": "drill", "by": "ada"})
    await start_looper(running)

    refused = await http.post("/api/agents/looper/nudge")
    state = (await http.get("/api/emergency-stop")).json()
    health = (await http.get("/api/agents/looper/health")).json()
    released = await http.put("/api/emergency-stop", json={"on": False, "reason": "over"})

    assert put.status_code == 200
    assert refused.status_code == 409
    assert "drill" in refused.json()["reason"]
    assert (state["on"], state["by"], state["reason"]) == (True, "ada", "drill")
    assert health["state"] == "stuck"
    assert released.json()["on"] is False


@pytest.mark.parametrize("message", ["", " ", "\n\t "])
async def test_empty_nudge_is_refused(running: RunningService, http: httpx.AsyncClient, message: str) -> None:
    await start_looper(running)

    response = await http.post("/api/agents/looper/nudge", json={"message": message})

    assert response.status_code == 422
    assert "message" in response.json()["title"]


async def test_name_is_kept_without_control_characters(
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

    refused = (await http.post("/api/recoveries", json={"task_id": "looper-session"})).json()

    assert "(set by ada at " in refused["reason"]
    assert refused["reason"].endswith("queenright stop-acting off")


# -- escalations, breakers ----------------------------------------------------------------------


async def test_escalation_is_listed_and_decided_once(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await start_looper(running, times=3)
    escalated = (await http.post("/api/agents/looper/escalate", json={"reason": "odd"})).json()
    path = f"/api/escalations/{escalated['escalation_id']}/decision"

    [pending] = (await http.get("/api/escalations", params={"open": True})).json()["escalations"]
    decided = await http.post(path, json={"decision": "more_time", "more_time_seconds": 60, "by": "ada"})
    repeated = await http.post(path, json={"decision": "terminate"})
    beginning = escalated["escalation_id"][:8]
    by_beginning = await http.post(f"/api/escalations/{beginning}/decision", json={"decision": "terminate"})

    assert (pending["agent_id"], pending["reason"], pending["status"]) == ("looper", "odd", "pending")
    assert decided.status_code == 202
    assert (decided.json()["decision"], decided.json()["decided_by"]) == ("more_time", "ada")
    assert (repeated.status_code, by_beginning.status_code) == (409, 409)
    assert by_beginning.json()["title"] == repeated.json()["title"]
    assert (await http.get("/api/escalations", params={"open": True})).json()["escalations"] == []


async def test_breaker_is_shown_and_closed_by_a_person(
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

    [listed] = (await http.get("/api/breakers")).json()["breakers"]
    health = (await http.get("/api/agents/looper/health")).json()
    reset = await http.post("/api/breakers/tool_execution:looper:search/reset", json={"by": "ada"})

    assert (listed["name"], listed["state"]) == ("tool_execution:looper:search", "open")
    assert [b["name"] for b in health["circuit_breakers"]] == [listed["name"]]
    assert (reset.status_code, reset.json()["state"]) == (200, "closed")


async def test_breaker_of_a_workers_process_is_listed_with_its_session(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    running.service.breakers.get("tool_execution", "looper", "search")
    await start_looper(running, times=1)
    await report_event(running, EventType.BREAKER_REPORTED, name="external_api::maps", to="open")

    pages = [(await http.get("/api/breakers", params={"limit": 1})).json()]
    pages.append((await http.get("/api/breakers", params={"limit": 1, "cursor": pages[0]["next"]})).json())
    [only] = (await http.get("/api/breakers", params={"open": True})).json()["breakers"]
    health = (await http.get("/api/agents/looper/health")).json()
    reset = await http.post(f"/api/breakers/{only['name']}/reset")
    await report_event(running, EventType.BREAKER_REPORTED, name="external_api::maps", to="closed")

    name = f"process:looper:{WORKER['session_id']}:external_api::maps"
    assert [row["name"] for page in pages for row in page["breakers"]] == [
        name,
        "tool_execution:looper:search",
    ]
    assert (only["name"], only["state"], only["session_id"]) == (name, "open", WORKER["session_id"])
    assert only["name"] in [b["name"] for b in health["circuit_breakers"]]
    assert (reset.status_code, "when a probe there succeeds" in reset.text) == (409, True)
    assert (await http.get("/api/breakers", params={"open": True})).json()["breakers"] == []
