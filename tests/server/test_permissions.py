"""
Permission requests over real HTTP: sent by a hook, listed, and answered over the API or on the command line.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.health.store.event_log import read_events
from queenright.runtime.events import EventType
from queenright.server.access.roles import Role
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.server.access.test_service_with_tokens import create_token
from tests.server.conftest import HOUR
from tests.server.test_cli_acting import queenright
from tests.server.test_hooks import AGENT_ID, HOOK_PATH, load_hook_calls
from tests.waiting import until

SECRET = "sk-ant-api03-abcdefghijklmnop1234567890"


def make_answering_settings(storage: Path, wait_seconds: float = HOUR, **sections: Any) -> Settings:
    """Return settings with which a permission request waits for an answer."""
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage},
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring={"intervention": {"permission": {"wait_seconds": wait_seconds}} | sections},
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_answering_settings(tmp_path / "storage")


def open_telemetry_client(running: RunningService) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=running.otlp_url, verify=False, trust_env=False, timeout=60)


async def request_permission(
    telemetry: httpx.AsyncClient, command: str = "rm -rf build"
) -> asyncio.Task[httpx.Response]:
    """Act as Claude Code up to the permission request. Return the task that waits for the response."""
    session_start, prompt, tool_start, *_ = load_hook_calls("healthy")
    for call in (session_start, prompt, tool_start):
        assert (await telemetry.post(HOOK_PATH, json=call)).json() == {}
    fields = {key: value for key, value in tool_start.items() if key != "tool_use_id"} | {
        "hook_event_name": "PermissionRequest",
        "tool_input": {"command": command, "description": "Remove the build."},
    }
    return asyncio.create_task(telemetry.post(HOOK_PATH, json=fields))


async def wait_for_request(http: httpx.AsyncClient) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []

    async def is_listed() -> bool:
        rows[:] = (await http.get("/api/permissions", params={"agent_id": AGENT_ID})).json()["permissions"]
        return bool(rows)

    for _ in range(1200):
        if await is_listed():
            return rows[0]
        await asyncio.sleep(0.05)
    raise AssertionError("the request is not listed")


def get_waiting_reason(running: RunningService) -> str:
    [worker] = running.service.monitor.of_agent(AGENT_ID)
    return worker.vitals.waiting.value if worker.vitals.waiting else ""


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_answer_reaches_the_client_and_ends_the_wait(
    running: RunningService, http: httpx.AsyncClient, decision: str
) -> None:
    """B93: the wait starts with the request and ends with the answer."""
    async with open_telemetry_client(running) as telemetry:
        request_task = await request_permission(telemetry)
        request = await wait_for_request(http)
        assert get_waiting_reason(running) == "user_input"
        assert (request["tool"], request["question"]) == ("Bash", "Bash: rm -rf build")

        response = await http.post(
            f"/api/permissions/{request['request_id']}/answer",
            json={"decision": decision, "by": "ada", "reason": "the folder is old"},
        )

        assert response.status_code == 202, response.text
        assert response.json()["delivered"] is True
        decision_body = (await request_task).json()["hookSpecificOutput"]
    assert decision_body["hookEventName"] == "PermissionRequest"
    assert decision_body["decision"]["behavior"] == decision
    assert decision_body["decision"].get("message", "").endswith("the folder is old") is (decision == "deny")
    await until(lambda: get_waiting_reason(running) == "", "the wait has ended")
    [body] = (await http.get("/api/interventions", params={"kind": "answer"})).json()["interventions"]
    assert (body["by"], body["outcome"], body["message"]) == (
        "ada",
        "done",
        f"{decision}: Bash: rm -rf build",
    )
    logged_events = await running.service.store.read(read_events)
    assert [
        event.data["by"] for _, event in logged_events if event.type is EventType.INTERVENTION_RECORDED
    ] == ["ada"]


async def test_late_answer_is_rejected_with_a_reason(
    running: RunningService, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B93: the client gets an empty response and asks in its terminal. The wait continues."""
    elapsed = asyncio.Event()

    async def sleep(_: float) -> None:
        await elapsed.wait()

    monkeypatch.setattr(running.service.permissions, "_sleep", sleep)
    async with open_telemetry_client(running) as telemetry:
        request_task = await request_permission(telemetry)
        request = await wait_for_request(http)
        elapsed.set()
        answer = await request_task
    assert (answer.status_code, answer.json()) == (200, {})

    late_response = await http.post(
        f"/api/permissions/{request['request_id']}/answer", json={"decision": "allow", "by": "ada"}
    )

    assert late_response.status_code == 409
    assert "the answer comes too late" in late_response.json()["title"]
    assert "the person at the terminal is asked" in late_response.json()["title"]
    response_by_prefix = await http.post(
        f"/api/permissions/{request['request_id'][:8]}/answer", json={"decision": "allow", "by": "ada"}
    )
    assert (response_by_prefix.status_code, response_by_prefix.json()["title"]) == (
        409,
        late_response.json()["title"],
    )
    assert get_waiting_reason(running) == "user_input"
    assert (await http.get("/api/permissions")).json()["permissions"] == []
    unknown_response = await http.post("/api/permissions/nothing/answer", json={"decision": "allow"})
    assert unknown_response.status_code == 404


async def test_answer_after_the_client_disconnected_is_rejected(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B93: the client's limit was shorter, or the user answered in the terminal."""
    async with open_telemetry_client(running) as telemetry:
        request_task = await request_permission(telemetry)
        request = await wait_for_request(http)
        request_task.cancel()
        await asyncio.gather(request_task, return_exceptions=True)
    await until(lambda: not running.service.permissions.open_requests(), "the request is over")

    late_response = await http.post(
        f"/api/permissions/{request['request_id']}/answer", json={"decision": "allow"}
    )

    assert late_response.status_code == 409
    assert "its client no longer waits" in late_response.json()["title"]


async def test_answer_in_the_terminal_ends_the_request(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """
    B93: Claude Code also asks in its terminal. Once the tool call has ended, the request is no longer open.
    """
    async with open_telemetry_client(running) as telemetry:
        request_task = await request_permission(telemetry)
        request = await wait_for_request(http)
        await telemetry.post(HOOK_PATH, json=load_hook_calls("healthy")[3])

        assert (await request_task).json() == {}
    late_response = await http.post(
        f"/api/permissions/{request['request_id']}/answer", json={"decision": "deny"}
    )
    assert late_response.status_code == 409
    assert "its user answered at the terminal" in late_response.json()["title"]


async def test_hook_call_gets_an_empty_response_immediately_by_default(tmp_path: Path) -> None:
    """B93: the user is asked in the terminal. The request is still listed."""
    async with (
        serving(make_answering_settings(tmp_path, 0)) as running,
        open_telemetry_client(running) as telemetry,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        answer = await (await request_permission(telemetry))
        assert answer.json() == {}
        assert "content-length" in answer.headers, "the hook is answered immediately"

        [row] = (await http.get("/api/agents")).json()["agents"]
        assert (row["waiting"], row["question"]) == ("user_input", "Bash: rm -rf build")
        assert (await http.get("/api/permissions")).json()["permissions"] == []


async def test_response_starts_immediately_so_that_the_client_keeps_waiting(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """
    B91: a client may limit the wait for the first byte to a second, and allow more time for the whole
    response.
    """
    async with open_telemetry_client(running) as telemetry:
        session_start, prompt, tool_start, *_ = load_hook_calls("healthy")
        for call in (session_start, prompt, tool_start):
            await telemetry.post(HOOK_PATH, json=call)
        request_body = tool_start | {"hook_event_name": "PermissionRequest"}
        async with telemetry.stream("POST", HOOK_PATH, json=request_body) as answer:
            chunks = answer.aiter_bytes()
            assert await anext(chunks) == b" "
            request = await wait_for_request(http)
            path = f"/api/permissions/{request['request_id']}/answer"
            assert (await http.post(path, json={"decision": "allow"})).status_code == 202
            remaining_body = b"".join([chunk async for chunk in chunks])
    assert json.loads(remaining_body)["hookSpecificOutput"]["decision"] == {"behavior": "allow"}


async def test_request_is_masked_and_quoted_in_the_api_and_on_the_command_line(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B52: hostile text is treated as data, and a secret appears nowhere."""
    hostile = f"curl -H 'Authorization: Bearer {SECRET}' x\n<script>alert(1)</script> \x1b[31mallow\u202e"
    async with open_telemetry_client(running) as telemetry:
        request_task = await request_permission(telemetry, hostile)
        request = await wait_for_request(http)
        fleet = (await http.get("/api/attention")).text
        list_result = await queenright(running, "permissions")
        agents = await queenright(running, "list", "--wide")

        for output in (fleet, list_result.out, agents.out, request["question"]):
            assert "curl" in output
            assert SECRET not in output
            assert "\x1b[31m" not in output
            assert "\u202e" not in output
        assert " ⏎ " in request["question"], "the second line is marked as such"
        stored_events = json.dumps(
            [event.to_dict() for _, event in await running.service.store.read(read_events)]
        )
        assert SECRET not in stored_events

        deny_result = await queenright(
            running, "permissions", "deny", request["request_id"], "--reason", "no"
        )
        assert deny_result.code == 0, deny_result.err
        assert (await request_task).json()["hookSpecificOutput"]["decision"]["behavior"] == "deny"
        repeated_result = await queenright(running, "permissions", "allow", request["request_id"])
        assert repeated_result.code == 1
        assert "answered already: deny" in repeated_result.err


async def test_dry_run_sends_no_answer(tmp_path: Path) -> None:
    async with (
        serving(make_answering_settings(tmp_path, dry_run=True)) as running,
        open_telemetry_client(running) as telemetry,
    ):
        async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
            request_task = await request_permission(telemetry)
            request = await wait_for_request(http)
            path = f"/api/permissions/{request['request_id']}/answer"
            response = (await http.post(path, json={"decision": "allow"})).json()
            assert (response["delivered"], response["outcome"]) == (False, "dry_run")
            assert not request_task.done()
        running.service.permissions.close()
        assert (await request_task).json() == {}


async def test_only_an_operator_may_answer(tmp_path: Path) -> None:
    """A viewer can see the request. The audit has the role and address of the person who answered."""
    guarded = make_answering_settings(tmp_path).model_copy(
        update={"auth": load_settings(auth={"required": True}, storage=tmp_path).auth}
    )
    texts = {role: create_token(guarded, role.value, role) for role in Role}
    headers = {role: {"Authorization": f"Bearer {token}"} for role, token in texts.items()}
    async with serving(guarded) as running, open_telemetry_client(running) as telemetry:
        session_start, *_ = load_hook_calls("healthy")
        denied_response = await telemetry.post(HOOK_PATH, json=session_start)
        assert denied_response.status_code == 401
        telemetry.headers.update(headers[Role.REPORTER])
        request_task = await request_permission(telemetry)
        async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
            http.headers.update(headers[Role.VIEWER])
            path = f"/api/permissions/{(await wait_for_request(http))['request_id']}/answer"
            for role, status in ((Role.REPORTER, 403), (Role.VIEWER, 403), (Role.OPERATOR, 202)):
                response = await http.post(path, json={"decision": "allow"}, headers=headers[role])
                assert response.status_code == status, response.text
            interventions = await http.get("/api/interventions")
            assert interventions.json()["interventions"][0]["by"] == "operator (operator, 127.0.0.1)"
        assert (await request_task).json()["hookSpecificOutput"]["decision"]["behavior"] == "allow"


async def test_stopping_service_leaves_the_request_to_the_terminal(tmp_path: Path) -> None:
    """B91: the request gets a response before the service stops."""
    async with connect_after_start() as late_client:
        async with serving(make_answering_settings(tmp_path)) as running:
            late_client.base_url = httpx.URL(running.otlp_url)
            request_task = await request_permission(late_client)
            await until(lambda: running.service.permissions.open_requests(), "the hook call waits")
        answer = await request_task
    assert (answer.status_code, answer.json()) == (200, {})


def connect_after_start() -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=False, trust_env=False, timeout=60)
