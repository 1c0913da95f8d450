"""Agents that ran inside a service that was killed outright: what the next one says, and does for them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.server.ops.sockets import find_free_port
from tests.server.agents.parts import guide, looper
from tests.warm import Command

LOOPS = "/api/audit?agent_id=looper&type="
GUIDES = "/api/audit?agent_id=guide&type="


@contextmanager
def served(folder: Path) -> Iterator[httpx.Client]:
    """Run the service as a program that is killed in the end; it loads the agents when it starts."""
    port = find_free_port("127.0.0.1", 0, what="the service", option="port")
    process = Command(
        *("serve", f"--storage={folder / 'storage'}", f"--port={port}", "--otlp-port=0"),
        cwd=folder,
        streams=(None, 2, 2),
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http:
            answered(http, "/readyz", "")
            yield http
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def answered(http: httpx.Client, path: str, words: str) -> Any:
    """Ask until the answer has these words in it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            answer = http.get(path)
            if answer.status_code == 200 and words in answer.text:
                return answer.json()
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"within 60 s: {path} answers with {words}")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, dict[str, Any]]]:
    """A service that was killed while one agent worked and one waited, and runs again; and how that began."""
    folder = tmp_path_factory.mktemp("killed")
    looper(folder / "agents" / "looper")
    guide(folder / "agents" / "guide")
    agents = {"roots": ["agents"], "load": ["looper", "guide"], "storage": str(folder / "kept")}
    (folder / "queenright.yaml").write_text(json.dumps({"agents": agents}), encoding="utf-8")
    with served(folder) as http:
        http.post("/api/agents/looper/trigger").raise_for_status()
        topic = {"input_data": {"topic": "bees"}}
        http.post("/api/agents/guide/trigger", json=topic).raise_for_status()
        found = {
            "looper": answered(http, LOOPS + "tool_call_completed", "tool_call_completed")["events"][-1],
            "guide": answered(http, GUIDES + "client_input_requested", "client_input_requested")["events"][0],
        }
    with served(folder) as http:
        yield http, found


def test_session_of_a_killed_process_is_interrupted(
    killed: tuple[httpx.Client, dict[str, Any]],
) -> None:
    http, found = killed
    for agent in ("looper", "guide"):
        where = f"/api/agents/{agent}/sessions"
        [row] = http.get(where).json()["sessions"]
        one = http.get(f"{where}/{found[agent]['session_id']}").json()
        assert (row["status"], row["interrupted"], one["interrupted"]) == ("active", True, True)


def test_killed_run_is_recovered_at_once_on_request(
    killed: tuple[httpx.Client, dict[str, Any]],
) -> None:
    """A person's word is enough: the quiet time after a start is for what is done without one."""
    http, found = killed
    session, life = found["looper"]["session_id"], found["looper"]["incarnation_id"]
    task = {"task_id": answered(http, "/api/agents/looper/health", "task_id")["task_id"], "by": "ada"}

    # By the log it is still at work; that it went with its service is a person's word.
    early = http.post("/api/recoveries", json=task)
    ended = http.post("/api/agents/looper/terminate", json={"reason": "killed", "by": "ada"})
    refused = http.post("/api/recoveries", json=task)
    brought = http.post("/api/recoveries", json=task | {"from_start": True})

    assert (early.status_code, ended.status_code, brought.status_code) == (409, 202, 202)
    assert "terminate it first" in early.json()["title"]
    assert (refused.json()["accepted"], brought.json()["accepted"]) == (False, True)
    assert "--from-start" in refused.json()["reason"], "it was killed before its first checkpoint (B100)"
    [back] = answered(http, LOOPS + "recovery_completed", "recovery_completed")["events"]
    assert back["data"]["new_session_id"] == session
    assert back["data"]["new_incarnation_id"] not in ("", life)
    answered(http, LOOPS + "execution_started", back["data"]["new_incarnation_id"])
    assert not http.get(f"/api/agents/looper/sessions/{session}").json()["interrupted"]


def test_killed_run_that_waited_for_its_user_is_resumed_and_completes(
    killed: tuple[httpx.Client, dict[str, Any]],
) -> None:
    http, found = killed
    session, question_type = found["guide"]["session_id"], GUIDES + "client_input_requested"
    task = {"task_id": answered(http, "/api/agents/guide/health", "task_id")["task_id"], "by": "ada"}

    ended = http.post("/api/agents/guide/terminate", json={"reason": "killed"})
    brought = http.post("/api/recoveries", json=task)
    assert (ended.status_code, brought.status_code) == (409, 409)
    assert "resume it" in ended.json()["title"]
    assert "resume it" in brought.json()["title"]

    resumed = http.post("/api/agents/guide/resume", json={"session_id": session})
    assert resumed.status_code == 202, resumed.text
    # It had asked who is there, and asks again.
    first = found["guide"]["id"]
    deadline = time.monotonic() + 60
    while {event["id"] for event in answered(http, question_type, first)["events"]} == {first}:
        assert time.monotonic() < deadline, "it asks again"
        time.sleep(0.1)
    body = {"message": "Ada", "session_id": session}
    assert http.post("/api/agents/guide/chat", json=body).json()["status"] == "injected"
    over = answered(http, f"/api/agents/guide/sessions/{session}", '"completed"')
    assert "Ada: all about bees" in json.dumps(over)
