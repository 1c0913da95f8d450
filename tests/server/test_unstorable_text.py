"""Text that only one of the databases could store is rejected with both."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from queenright.server.serving import serving
from tests.server.conftest import demo_settings

JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def api(tmp_path: Path, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    settings = demo_settings(tmp_path / "storage").model_copy(update={"database": database_url})
    async with (
        serving(settings) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        yield http


async def test_nul_in_a_path_is_rejected_before_the_store(api: httpx.AsyncClient) -> None:
    paths = [
        "/api/recoveries/%00",
        "/api/tickets/%00",
        "/tickets/a%00b",
        "/api/agents/%00/health",
        "/api/agents/bee%00/history",
        "/api/agents/bee/heartbeat/%00",
        "/api/breakers/tool_execution:%00",
    ]
    queries = [
        "/api/interventions?agent_id=%00",
        "/api/agents/bee/health?session_id=a%00b",
        "/api/agents/bee/instructions?session_id=%00&incarnation_id=one",
    ]
    for place_name, addresses in (("path", paths), ("query", queries)):
        for address in addresses:
            response = await api.get(address)
            assert (response.status_code, address) == (400, address)
            assert f"the {place_name} contains a NUL character (%00)" in response.json()["title"]
    for address in (
        "/api/escalations/%00/decision",
        "/api/agents/bee/instructions/%00/answer",
        "/api/tickets/%00/acknowledge",
    ):
        assert (await api.post(address, json={})).status_code == 400


async def test_escaped_text_that_resembles_nul_is_an_ordinary_name(api: httpx.AsyncClient) -> None:
    assert (await api.get("/api/tickets/%2500")).status_code == 404
    assert (await api.get("/api/interventions?agent_id=%2500")).status_code == 200


@pytest.mark.parametrize("invalid_text", ["\0", "a\0b", "\ud800"], ids=ascii)
async def test_text_that_cannot_be_stored_is_rejected_in_a_body(
    api: httpx.AsyncClient, invalid_text: str
) -> None:
    target: dict[str, object] = {"session_id": "s", "incarnation_id": "i", "outcome": "done"}
    stop: dict[str, object] = {"on": False, "reason": "it is over", "by": "ada"}
    bodies: list[tuple[str, str, dict[str, object], str]] = [
        ("POST", "/api/agents/bee/nudge", {"session_id": invalid_text}, "session_id"),
        ("POST", "/api/agents/bee/nudge", {"message": invalid_text}, "message"),
        (
            "POST",
            "/api/agents/bee/terminate",
            {"reason": "x", "incarnation_id": invalid_text},
            "incarnation_id",
        ),
        ("POST", "/api/agents/bee/escalate", {"reason": "x", "by": invalid_text}, "by"),
        (
            "POST",
            "/api/agents/bee/instructions/one/answer",
            target | {"session_id": invalid_text},
            "session_id",
        ),
        (
            "POST",
            "/api/agents/bee/instructions/one/answer",
            target | {"checkpoint_id": invalid_text},
            "checkpoint_id",
        ),
        ("POST", "/api/escalations/one/decision", {"decision": "more_time", "by": invalid_text}, "by"),
        ("POST", "/api/recoveries", {"task_id": invalid_text}, "task_id"),
        ("POST", "/api/breakers/recovery/reset", {"by": invalid_text}, "by"),
        ("PUT", "/api/emergency-stop", stop | {"reason": invalid_text}, "reason"),
        ("PUT", "/api/emergency-stop", stop | {"by": invalid_text}, "by"),
        ("POST", "/api/tickets/one/acknowledge", {"by": invalid_text}, "by"),
        ("POST", "/api/tickets/one/resolve", {"reason": "x", "by": invalid_text}, "by"),
    ]
    for method, path, body, field in bodies:
        response = await api.request(method, path, content=json.dumps(body), headers=JSON)
        assert (response.status_code, path, field) == (422, path, field)
        assert response.json()["title"].startswith(f"{field}: ")
        assert "NUL characters" in response.json()["title"]

    heartbeat = await api.post(
        "/api/heartbeats", content=json.dumps({"agent_id": "bee", "task_id": invalid_text})
    )
    assert heartbeat.status_code == 400
