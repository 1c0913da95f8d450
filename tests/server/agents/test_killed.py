"""
Agents of a service that was killed: what the restarted service reports about them, and how it recovers them.
"""

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
from tests.server.agents.parts import write_guide, write_looper
from tests.warm import Command

LOOPS = "/api/audit?agent_id=looper&type="
GUIDES = "/api/audit?agent_id=guide&type="


@contextmanager
def run_service(folder: Path) -> Iterator[httpx.Client]:
    """Run the service as a process that is killed at the end. It loads the agents when it starts."""
    port = find_free_port("127.0.0.1", 0, what="the service", option="port")
    process = Command(
        *("serve", f"--storage={folder / 'storage'}", f"--port={port}", "--otlp-port=0"),
        cwd=folder,
        streams=(None, 2, 2),
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http:
            wait_for_answer(http, "/readyz", "")
            yield http
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def wait_for_answer(http: httpx.Client, path: str, words: str) -> Any:
    """Repeat a request until its response contains the words."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            answer = http.get(path)
            if answer.status_code == 200 and words in answer.text:
                return answer.json()
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"{path} did not return {words!r} within 60 s")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, dict[str, Any]]]:
    """
    Yield a client of the restarted service, and the runs that were interrupted: one working, one waiting.
    """
    folder = tmp_path_factory.mktemp("killed")
    write_looper(folder / "agents" / "looper")
    write_guide(folder / "agents" / "guide")
    agents = {"roots": ["agents"], "load": ["looper", "guide"], "storage": str(folder / "kept")}
    (folder / "queenright.yaml").write_text(json.dumps({"agents": agents}), encoding="utf-8")
    with run_service(folder) as http:
        http.post("/api/agents/looper/trigger").raise_for_status()
        topic = {"input_data": {"topic": "bees"}}
        http.post("/api/agents/guide/trigger", json=topic).raise_for_status()
        found = {
            "looper": wait_for_answer(http, LOOPS + "tool_call_completed", "tool_call_completed")["events"][
                -1
            ],
            "guide": wait_for_answer(http, GUIDES + "client_input_requested", "client_input_requested")[
                "events"
            ][0],
        }
    with run_service(folder) as http:
        yield http, found


def test_session_of_a_killed_process_is_interrupted(
    killed: tuple[httpx.Client, dict[str, Any]],
) -> None:
    http, found = killed
    for agent in ("looper", "guide"):
        where = f"/api/agents/{agent}/sessions"
        [row] = http.get(where).json()["sessions"]
        session = http.get(f"{where}/{found[agent]['session_id']}").json()
        assert (row["status"], row["interrupted"], session["interrupted"]) == ("active", True, True)


def test_killed_run_is_recovered_at_once_on_request(
    killed: tuple[httpx.Client, dict[str, Any]],
) -> None:
    """A request by a person is carried out during the grace period after a start."""
    http, found = killed
    session, life = found["looper"]["session_id"], found["looper"]["incarnation_id"]
    task = {"task_id": wait_for_answer(http, "/api/agents/looper/health", "task_id")["task_id"], "by": "ada"}

    # According to the log it still runs. Only a person can say that it ended with its service.
    early = http.post("/api/recoveries", json=task)
    ended = http.post("/api/agents/looper/terminate", json={"reason": "killed", "by": "ada"})
    refused = http.post("/api/recoveries", json=task)
    recovered = http.post("/api/recoveries", json=task | {"from_start": True})

    assert (early.status_code, ended.status_code, recovered.status_code) == (409, 202, 202)
    assert "terminate it first" in early.json()["title"]
    assert (refused.json()["accepted"], recovered.json()["accepted"]) == (False, True)
    assert "--from-start" in refused.json()["reason"], "it was killed before its first checkpoint (B100)"
    [recovery] = wait_for_answer(http, LOOPS + "recovery_completed", "recovery_completed")["events"]
    assert recovery["data"]["new_session_id"] == session
    assert recovery["data"]["new_incarnation_id"] not in ("", life)
    wait_for_answer(http, LOOPS + "execution_started", recovery["data"]["new_incarnation_id"])
    assert not http.get(f"/api/agents/looper/sessions/{session}").json()["interrupted"]


def test_killed_run_that_waited_for_its_user_is_resumed_and_completes(
    killed: tuple[httpx.Client, dict[str, Any]],
) -> None:
    http, found = killed
    session, question_type = found["guide"]["session_id"], GUIDES + "client_input_requested"
    task = {"task_id": wait_for_answer(http, "/api/agents/guide/health", "task_id")["task_id"], "by": "ada"}

    ended = http.post("/api/agents/guide/terminate", json={"reason": "killed"})
    recovered = http.post("/api/recoveries", json=task)
    assert (ended.status_code, recovered.status_code) == (409, 409)
    assert "resume it" in ended.json()["title"]
    assert "resume it" in recovered.json()["title"]

    resumed = http.post("/api/agents/guide/resume", json={"session_id": session})
    assert resumed.status_code == 202, resumed.text
    # The run asks its question again.
    first = found["guide"]["id"]
    deadline = time.monotonic() + 60
    while {event["id"] for event in wait_for_answer(http, question_type, first)["events"]} == {first}:
        assert time.monotonic() < deadline, "it asks again"
        time.sleep(0.1)
    body = {"message": "Ada", "session_id": session}
    assert http.post("/api/agents/guide/chat", json=body).json()["status"] == "injected"
    over = wait_for_answer(http, f"/api/agents/guide/sessions/{session}", '"completed"')
    assert "Ada: all about bees" in json.dumps(over)
