"""Permission requests over real HTTP: sent by hook, listed, answered over the API or the command line."""

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
from tests.server.test_hooks import AGENT, HOOK, hook_calls
from tests.waiting import until

SECRET = "sk-ant-api03-abcdefghijklmnop1234567890"


def answering_settings(storage: Path, wait_seconds: float = HOUR, **more: Any) -> Settings:
    """Return settings with which a permission request waits for an answer."""
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage},
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring={"intervention": {"permission": {"wait_seconds": wait_seconds}} | more},
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return answering_settings(tmp_path / "storage")


def telemetry_client(running: RunningService) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=running.otlp_url, verify=False, trust_env=False, timeout=60)


async def request_permission(
    telemetry: httpx.AsyncClient, command: str = "rm -rf build"
) -> asyncio.Task[httpx.Response]:
    """Act as Claude Code up to the permission request, and wait for the answer."""
    start, prompt, before, *_ = hook_calls("healthy")
    for call in (start, prompt, before):
        assert (await telemetry.post(HOOK, json=call)).json() == {}
    fields = {key: value for key, value in before.items() if key != "tool_use_id"} | {
        "hook_event_name": "PermissionRequest",
        "tool_input": {"command": command, "description": "Remove the build."},
    }
    return asyncio.create_task(telemetry.post(HOOK, json=fields))


async def wait_for_request(http: httpx.AsyncClient) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []

    async def is_there() -> bool:
        rows[:] = (await http.get("/api/permissions", params={"agent_id": AGENT})).json()["permissions"]
        return bool(rows)

    for _ in range(1200):
        if await is_there():
            return rows[0]
        await asyncio.sleep(0.05)
    raise AssertionError("the request is not listed")


def waiting_reason(running: RunningService) -> str:
    [worker] = running.service.monitor.of_agent(AGENT)
    return worker.vitals.waiting.value if worker.vitals.waiting else ""


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_answer_reaches_the_client_and_ends_the_wait(
    running: RunningService, http: httpx.AsyncClient, decision: str
) -> None:
    """B93: the wait starts with the request and ends with the answer."""
    async with telemetry_client(running) as telemetry:
        waiting = await request_permission(telemetry)
        request = await wait_for_request(http)
        assert waiting_reason(running) == "user_input"
        assert (request["tool"], request["question"]) == ("Bash", "Bash: rm -rf build")

        response = await http.post(
            f"/api/permissions/{request['request_id']}/answer",
            json={"decision": decision, "by": "ada", "reason": "the folder is old"},
        )

        assert response.status_code == 202, response.text
        assert response.json()["delivered"] is True
        decision_body = (await waiting).json()["hookSpecificOutput"]
    assert decision_body["hookEventName"] == "PermissionRequest"
    assert decision_body["decision"]["behavior"] == decision
    assert decision_body["decision"].get("message", "").endswith("the folder is old") is (decision == "deny")
    await until(lambda: waiting_reason(running) == "", "the wait is over")
    [body] = (await http.get("/api/interventions", params={"kind": "answer"})).json()["interventions"]
    assert (body["by"], body["outcome"], body["message"]) == (
        "ada",
        "done",
        f"{decision}: Bash: rm -rf build",
    )
    logged = await running.service.store.read(read_events)
    assert [e.data["by"] for _, e in logged if e.type is EventType.INTERVENTION_RECORDED] == ["ada"]


async def test_late_answer_is_refused_with_a_reason(
    running: RunningService, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B93: the client gets an empty answer and asks in the terminal; the wait continues."""
    elapsed = asyncio.Event()

    async def sleep(_: float) -> None:
        await elapsed.wait()

    monkeypatch.setattr(running.service.permissions, "_sleep", sleep)
    async with telemetry_client(running) as telemetry:
        waiting = await request_permission(telemetry)
        request = await wait_for_request(http)
        elapsed.set()
        answer = await waiting
    assert (answer.status_code, answer.json()) == (200, {})

    late = await http.post(
        f"/api/permissions/{request['request_id']}/answer", json={"decision": "allow", "by": "ada"}
    )

    assert late.status_code == 409
    assert "the answer comes too late" in late.json()["title"]
    assert "the person at the terminal is asked" in late.json()["title"]
    by_beginning = await http.post(
        f"/api/permissions/{request['request_id'][:8]}/answer", json={"decision": "allow", "by": "ada"}
    )
    assert (by_beginning.status_code, by_beginning.json()["title"]) == (409, late.json()["title"])
    assert waiting_reason(running) == "user_input"
    assert (await http.get("/api/permissions")).json()["permissions"] == []
    unknown = await http.post("/api/permissions/nothing/answer", json={"decision": "allow"})
    assert unknown.status_code == 404


async def test_answer_after_the_client_hung_up_is_refused(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B93: the client's limit was shorter, or the user answered in the terminal."""
    async with telemetry_client(running) as telemetry:
        waiting = await request_permission(telemetry)
        request = await wait_for_request(http)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: not running.service.permissions.open_requests(), "the request is over")

    late = await http.post(f"/api/permissions/{request['request_id']}/answer", json={"decision": "allow"})

    assert late.status_code == 409
    assert "its client no longer waits" in late.json()["title"]


async def test_answer_in_the_terminal_ends_the_request(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B93: Claude Code also asks in the terminal; once the tool has ended, nothing is asked here."""
    async with telemetry_client(running) as telemetry:
        waiting = await request_permission(telemetry)
        request = await wait_for_request(http)
        await telemetry.post(HOOK, json=hook_calls("healthy")[3])

        assert (await waiting).json() == {}
    late = await http.post(f"/api/permissions/{request['request_id']}/answer", json={"decision": "deny"})
    assert late.status_code == 409
    assert "its user answered at the terminal" in late.json()["title"]


async def test_by_default_the_hook_is_answered_at_once_with_nothing(tmp_path: Path) -> None:
    """B93: the user is asked in the terminal; the request is still shown."""
    async with (
        serving(answering_settings(tmp_path, 0)) as running,
        telemetry_client(running) as telemetry,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        answer = await (await request_permission(telemetry))
        assert answer.json() == {}
        assert "content-length" in answer.headers, "the hook is answered immediately"

        [row] = (await http.get("/api/agents")).json()["agents"]
        assert (row["waiting"], row["question"]) == ("user_input", "Bash: rm -rf build")
        assert (await http.get("/api/permissions")).json()["permissions"] == []


async def test_answer_begins_at_once_so_that_the_client_keeps_waiting(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B91: a client may limit the wait for the first byte to a second, and allow more for the answer."""
    async with telemetry_client(running) as telemetry:
        start, prompt, before, *_ = hook_calls("healthy")
        for call in (start, prompt, before):
            await telemetry.post(HOOK, json=call)
        request_body = before | {"hook_event_name": "PermissionRequest"}
        async with telemetry.stream("POST", HOOK, json=request_body) as answer:
            parts = answer.aiter_bytes()
            assert await anext(parts) == b" "
            request = await wait_for_request(http)
            path = f"/api/permissions/{request['request_id']}/answer"
            assert (await http.post(path, json={"decision": "allow"})).status_code == 202
            rest = b"".join([part async for part in parts])
    assert json.loads(rest)["hookSpecificOutput"]["decision"] == {"behavior": "allow"}


async def test_request_is_masked_quoted_and_shown_by_api_and_command_line(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B52: hostile text is data; a secret appears nowhere."""
    hostile = f"curl -H 'Authorization: Bearer {SECRET}' x\n<script>alert(1)</script> \x1b[31mallow\u202e"
    async with telemetry_client(running) as telemetry:
        waiting = await request_permission(telemetry, hostile)
        request = await wait_for_request(http)
        fleet = (await http.get("/api/attention")).text
        listed = await queenright(running, "permissions")
        agents = await queenright(running, "list", "--wide")

        for output in (fleet, listed.out, agents.out, request["question"]):
            assert "curl" in output
            assert SECRET not in output
            assert "\x1b[31m" not in output
            assert "\u202e" not in output
        assert " ⏎ " in request["question"], "the second line is marked as such"
        stored = json.dumps([e.to_dict() for _, e in await running.service.store.read(read_events)])
        assert SECRET not in stored

        denied = await queenright(running, "permissions", "deny", request["request_id"], "--reason", "no")
        assert denied.code == 0, denied.err
        assert (await waiting).json()["hookSpecificOutput"]["decision"]["behavior"] == "deny"
        repeated = await queenright(running, "permissions", "allow", request["request_id"])
        assert repeated.code == 1
        assert "answered already: deny" in repeated.err


async def test_dry_run_answers_nothing(tmp_path: Path) -> None:
    async with (
        serving(answering_settings(tmp_path, dry_run=True)) as running,
        telemetry_client(running) as telemetry,
    ):
        async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
            waiting = await request_permission(telemetry)
            request = await wait_for_request(http)
            path = f"/api/permissions/{request['request_id']}/answer"
            done = (await http.post(path, json={"decision": "allow"})).json()
            assert (done["delivered"], done["outcome"]) == (False, "dry_run")
            assert not waiting.done()
        running.service.permissions.close()
        assert (await waiting).json() == {}


async def test_only_an_operator_may_answer(tmp_path: Path) -> None:
    """A viewer sees the request; the audit has the role and address of who answered."""
    requested = answering_settings(tmp_path).model_copy(
        update={"auth": load_settings(auth={"required": True}, storage=tmp_path).auth}
    )
    texts = {role: create_token(requested, role.value, role) for role in Role}
    headers = {role: {"Authorization": f"Bearer {token}"} for role, token in texts.items()}
    async with serving(requested) as running, telemetry_client(running) as telemetry:
        start, *_ = hook_calls("healthy")
        denied = await telemetry.post(HOOK, json=start)
        assert denied.status_code == 401
        telemetry.headers.update(headers[Role.REPORTER])
        waiting = await request_permission(telemetry)
        async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
            http.headers.update(headers[Role.VIEWER])
            path = f"/api/permissions/{(await wait_for_request(http))['request_id']}/answer"
            for role, status in ((Role.REPORTER, 403), (Role.VIEWER, 403), (Role.OPERATOR, 202)):
                response = await http.post(path, json={"decision": "allow"}, headers=headers[role])
                assert response.status_code == status, response.text
            found = await http.get("/api/interventions")
            assert found.json()["interventions"][0]["by"] == "operator (operator, 127.0.0.1)"
        assert (await waiting).json()["hookSpecificOutput"]["decision"]["behavior"] == "allow"


async def test_stopping_service_leaves_requests_to_the_terminal(tmp_path: Path) -> None:
    """B91: the request gets an answer before the stop."""
    async with connect_later() as later:
        async with serving(answering_settings(tmp_path)) as running:
            later.base_url = httpx.URL(running.otlp_url)
            waiting = await request_permission(later)
            await until(lambda: running.service.permissions.open_requests(), "it waits")
        answer = await waiting
    assert (answer.status_code, answer.json()) == (200, {})


def connect_later() -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=False, trust_env=False, timeout=60)
