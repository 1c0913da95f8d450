"""Agents of a service that was killed: what the restarted service reports, and how it recovers them."""

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
    """Run the service as a process that loads the agents when it starts. Kill it at the end."""
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


def wait_for_answer(http: httpx.Client, path: str, expected_text: str) -> Any:
    """Repeat a request until its response contains a text; return the response."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            response = http.get(path)
            if response.status_code == 200 and expected_text in response.text:
                return response.json()
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"{path} did not return {expected_text!r} within 60 s")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, dict[str, Any]]]:
    """
    Kill a service with a working run and a waiting run. Yield a client of the restarted service, and the
    runs.
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
        runs = {
            "looper": wait_for_answer(http, LOOPS + "tool_call_completed", "tool_call_completed")["events"][
                -1
            ],
            "guide": wait_for_answer(http, GUIDES + "client_input_requested", "client_input_requested")[
                "events"
            ][0],
        }
    with run_service(folder) as http:
        yield http, runs


def test_session_of_a_killed_process_is_reported_as_interrupted(
    killed: tuple[httpx.Client, dict[str, Any]],
) -> None:
    http, runs = killed
    for agent in ("looper", "guide"):
        place = f"/api/agents/{agent}/sessions"
        [row] = http.get(place).json()["sessions"]
        session = http.get(f"{place}/{runs[agent]['session_id']}").json()
        assert (row["status"], row["interrupted"], session["interrupted"]) == ("active", True, True)


def test_killed_run_is_recovered_immediately_on_request(
    killed: tuple[httpx.Client, dict[str, Any]],
) -> None:
    """Such a request is carried out even during the grace period after a start."""
    http, runs = killed
    session, life = runs["looper"]["session_id"], runs["looper"]["incarnation_id"]
    task = {"task_id": wait_for_answer(http, "/api/agents/looper/health", "task_id")["task_id"], "by": "ada"}

    # According to the log, the run has not ended. Only a person can say that it ended with its service.
    early_response = http.post("/api/recoveries", json=task)
    terminate_response = http.post("/api/agents/looper/terminate", json={"reason": "killed", "by": "ada"})
    refusal = http.post("/api/recoveries", json=task)
    recovery_response = http.post("/api/recoveries", json=task | {"from_start": True})

    assert (early_response.status_code, terminate_response.status_code, recovery_response.status_code) == (
        409,
        202,
        202,
    )
    assert "terminate it first" in early_response.json()["title"]
    assert (refusal.json()["accepted"], recovery_response.json()["accepted"]) == (False, True)
    assert "--from-start" in refusal.json()["reason"], "it was killed before its first checkpoint (B100)"
    [recovery] = wait_for_answer(http, LOOPS + "recovery_completed", "recovery_completed")["events"]
    assert recovery["data"]["new_session_id"] == session
    assert recovery["data"]["new_incarnation_id"] not in ("", life)
    wait_for_answer(http, LOOPS + "execution_started", recovery["data"]["new_incarnation_id"])
    assert not http.get(f"/api/agents/looper/sessions/{session}").json()["interrupted"]


def test_killed_run_that_waited_for_its_user_is_resumed_and_completes(
    killed: tuple[httpx.Client, dict[str, Any]],
) -> None:
    http, runs = killed
    session, question_type = runs["guide"]["session_id"], GUIDES + "client_input_requested"
    task = {"task_id": wait_for_answer(http, "/api/agents/guide/health", "task_id")["task_id"], "by": "ada"}

    terminate_response = http.post("/api/agents/guide/terminate", json={"reason": "killed"})
    recovery_response = http.post("/api/recoveries", json=task)
    assert (terminate_response.status_code, recovery_response.status_code) == (409, 409)
    assert "resume it" in terminate_response.json()["title"]
    assert "resume it" in recovery_response.json()["title"]

    resume_response = http.post("/api/agents/guide/resume", json={"session_id": session})
    assert resume_response.status_code == 202, resume_response.text
    # The run asks its question again.
    killed_run = runs["guide"]["id"]
    deadline = time.monotonic() + 60
    while {event["id"] for event in wait_for_answer(http, question_type, killed_run)["events"]} == {
        killed_run
    }:
        assert time.monotonic() < deadline, "the run asks again"
        time.sleep(0.1)
    body = {"message": "Ada", "session_id": session}
    assert http.post("/api/agents/guide/chat", json=body).json()["status"] == "injected"
    finished_run = wait_for_answer(http, f"/api/agents/guide/sessions/{session}", '"completed"')
    assert "Ada: all about bees" in json.dumps(finished_run)
