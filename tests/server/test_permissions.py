"""Permission requests over real HTTP: asked by hook, shown, answered over the API or the command line."""

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
from tests.server.access.test_service_with_tokens import token_for
from tests.server.conftest import HOUR
from tests.server.test_cli_acting import queenright
from tests.server.test_hooks import AGENT, HOOK, calls
from tests.waiting import until

SECRET = "sk-ant-api03-abcdefghijklmnop1234567890"


def answering(storage: Path, wait_seconds: float = HOUR, **more: Any) -> Settings:
    """Return settings with which a permission request waits for an answer."""
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage},
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring={"intervention": {"permission": {"wait_seconds": wait_seconds}} | more},
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return answering(tmp_path / "storage")


def client_of(running: RunningService) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=running.otlp_url, verify=False, trust_env=False, timeout=60)


async def ask(telemetry: httpx.AsyncClient, command: str = "rm -rf build") -> asyncio.Task[httpx.Response]:
    """Be Claude Code up to its question, and wait for the answer as it does."""
    start, prompt, before, *_ = calls("healthy")
    for call in (start, prompt, before):
        assert (await telemetry.post(HOOK, json=call)).json() == {}
    fields = {key: value for key, value in before.items() if key != "tool_use_id"} | {
        "hook_event_name": "PermissionRequest",
        "tool_input": {"command": command, "description": "Remove the build."},
    }
    return asyncio.create_task(telemetry.post(HOOK, json=fields))


async def open_request(http: httpx.AsyncClient) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []

    async def is_there() -> bool:
        rows[:] = (await http.get("/api/permissions", params={"agent_id": AGENT})).json()["permissions"]
        return bool(rows)

    for _ in range(1200):
        if await is_there():
            return rows[0]
        await asyncio.sleep(0.05)
    raise AssertionError("the request is not listed")


def waiting_of(running: RunningService) -> str:
    [worker] = running.service.monitor.of_agent(AGENT)
    return worker.vitals.waiting.value if worker.vitals.waiting else ""


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_answer_reaches_the_client_and_ends_the_wait(
    running: RunningService, http: httpx.AsyncClient, decision: str
) -> None:
    """B93: it is a wait from the moment it is asked, and none once it is answered."""
    async with client_of(running) as telemetry:
        waiting = await ask(telemetry)
        request = await open_request(http)
        assert waiting_of(running) == "user_input"
        assert (request["tool"], request["question"]) == ("Bash", "Bash: rm -rf build")

        response = await http.post(
            f"/api/permissions/{request['request_id']}/answer",
            json={"decision": decision, "by": "ada", "reason": "it is old"},
        )

        assert response.status_code == 202, response.text
        assert response.json()["delivered"] is True
        given = (await waiting).json()["hookSpecificOutput"]
    assert given["hookEventName"] == "PermissionRequest"
    assert given["decision"]["behavior"] == decision
    assert given["decision"].get("message", "").endswith("it is old") is (decision == "deny")
    await until(lambda: waiting_of(running) == "", "the wait is over")
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
    """B93: the client gets an empty answer and asks at the terminal; the wait continues."""
    elapsed = asyncio.Event()

    async def sleep(_: float) -> None:
        await elapsed.wait()

    monkeypatch.setattr(running.service.permissions, "_sleep", sleep)
    async with client_of(running) as telemetry:
        waiting = await ask(telemetry)
        request = await open_request(http)
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
    assert waiting_of(running) == "user_input"
    assert (await http.get("/api/permissions")).json()["permissions"] == []
    unknown = await http.post("/api/permissions/nothing/answer", json={"decision": "allow"})
    assert unknown.status_code == 404


async def test_answer_after_the_client_hung_up_is_refused(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B93: its own limit was shorter, or the person at the terminal was faster."""
    async with client_of(running) as telemetry:
        waiting = await ask(telemetry)
        request = await open_request(http)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: not running.service.permissions.open_requests(), "the request is over")

    late = await http.post(f"/api/permissions/{request['request_id']}/answer", json={"decision": "allow"})

    assert late.status_code == 409
    assert "its client no longer waits" in late.json()["title"]


async def test_answer_at_the_terminal_comes_first(running: RunningService, http: httpx.AsyncClient) -> None:
    """B93: Claude Code asks there at the same time; once its tool has ended, nothing is asked here."""
    async with client_of(running) as telemetry:
        waiting = await ask(telemetry)
        request = await open_request(http)
        await telemetry.post(HOOK, json=calls("healthy")[3])

        assert (await waiting).json() == {}
    late = await http.post(f"/api/permissions/{request['request_id']}/answer", json={"decision": "deny"})
    assert late.status_code == 409
    assert "its user answered at the terminal" in late.json()["title"]


async def test_by_default_the_hook_is_answered_at_once_with_nothing(tmp_path: Path) -> None:
    """B93: the person at the terminal is asked; what is asked is shown all the same."""
    async with (
        serving(answering(tmp_path, 0)) as running,
        client_of(running) as telemetry,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        answer = await (await ask(telemetry))
        assert answer.json() == {}
        assert "content-length" in answer.headers, "nothing is held back"

        [row] = (await http.get("/api/agents")).json()["agents"]
        assert (row["waiting"], row["question"]) == ("user_input", "Bash: rm -rf build")
        assert (await http.get("/api/permissions")).json()["permissions"] == []


async def test_answer_begins_at_once_so_that_the_client_keeps_waiting(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B91: a client may give the first byte a second, and the answer longer."""
    async with client_of(running) as telemetry:
        start, prompt, before, *_ = calls("healthy")
        for call in (start, prompt, before):
            await telemetry.post(HOOK, json=call)
        request_body = before | {"hook_event_name": "PermissionRequest"}
        async with telemetry.stream("POST", HOOK, json=request_body) as answer:
            parts = answer.aiter_bytes()
            assert await anext(parts) == b" "
            request = await open_request(http)
            path = f"/api/permissions/{request['request_id']}/answer"
            assert (await http.post(path, json={"decision": "allow"})).status_code == 202
            rest = b"".join([part async for part in parts])
    assert json.loads(rest)["hookSpecificOutput"]["decision"] == {"behavior": "allow"}


async def test_request_is_masked_quoted_and_shown_by_api_and_command_line(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B52: hostile words are data; a secret is nowhere."""
    hostile = f"curl -H 'Authorization: Bearer {SECRET}' x\n<script>alert(1)</script> \x1b[31mallow\u202e"
    async with client_of(running) as telemetry:
        waiting = await ask(telemetry, hostile)
        request = await open_request(http)
        fleet = (await http.get("/api/attention")).text
        listed = await queenright(running, "permissions")
        agents = await queenright(running, "list", "--wide")

        for output in (fleet, listed.out, agents.out, request["question"]):
            assert "curl" in output
            assert SECRET not in output
            assert "\x1b[31m" not in output
            assert "\u202e" not in output
        assert " ⏎ " in request["question"], "a second line does not look like part of the first"
        stored = json.dumps([e.to_dict() for _, e in await running.service.store.read(read_events)])
        assert SECRET not in stored

        denied = await queenright(running, "permissions", "deny", request["request_id"], "--reason", "no")
        assert denied.code == 0, denied.err
        assert (await waiting).json()["hookSpecificOutput"]["decision"]["behavior"] == "deny"
        again = await queenright(running, "permissions", "allow", request["request_id"])
        assert again.code == 1
        assert "answered already: deny" in again.err


async def test_dry_run_answers_nothing(tmp_path: Path) -> None:
    async with serving(answering(tmp_path, dry_run=True)) as running, client_of(running) as telemetry:
        async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
            waiting = await ask(telemetry)
            request = await open_request(http)
            path = f"/api/permissions/{request['request_id']}/answer"
            done = (await http.post(path, json={"decision": "allow"})).json()
            assert (done["delivered"], done["outcome"]) == (False, "dry_run")
            assert not waiting.done()
        running.service.permissions.close()
        assert (await waiting).json() == {}


async def test_only_an_operator_may_answer(tmp_path: Path) -> None:
    """A viewer sees what is asked; who answered is kept with role and address."""
    given = answering(tmp_path).model_copy(
        update={"auth": load_settings(auth={"required": True}, storage=tmp_path).auth}
    )
    words = {role: token_for(given, role.value, role) for role in Role}
    headers = {role: {"Authorization": f"Bearer {token}"} for role, token in words.items()}
    async with serving(given) as running, client_of(running) as telemetry:
        start, *_ = calls("healthy")
        nobody = await telemetry.post(HOOK, json=start)
        assert nobody.status_code == 401
        telemetry.headers.update(headers[Role.REPORTER])
        waiting = await ask(telemetry)
        async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
            http.headers.update(headers[Role.VIEWER])
            path = f"/api/permissions/{(await open_request(http))['request_id']}/answer"
            for role, status in ((Role.REPORTER, 403), (Role.VIEWER, 403), (Role.OPERATOR, 202)):
                response = await http.post(path, json={"decision": "allow"}, headers=headers[role])
                assert response.status_code == status, response.text
            found = await http.get("/api/interventions")
            assert found.json()["interventions"][0]["by"] == "operator (operator, 127.0.0.1)"
        assert (await waiting).json()["hookSpecificOutput"]["decision"]["behavior"] == "allow"


async def test_stopping_service_leaves_requests_to_the_terminal(tmp_path: Path) -> None:
    """B91: it is answered, not broken off."""
    async with client_of_later() as later:
        async with serving(answering(tmp_path)) as running:
            later.base_url = httpx.URL(running.otlp_url)
            waiting = await ask(later)
            await until(lambda: running.service.permissions.open_requests(), "it waits")
        answer = await waiting
    assert (answer.status_code, answer.json()) == (200, {})


def client_of_later() -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=False, trust_env=False, timeout=60)
