"""Limits of concurrent and waiting runs of a loaded agent, and the responses beyond these limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.agents import adder
from tests.server.agents.parts import run_agent_service, write_guide
from tests.waiting import until


def write_serial_guide(roots: Path) -> Path:
    """Write a guide that runs one execution at a time, and queues at most one more."""
    file = write_guide(roots / "guide") / "agent.py"
    content = file.read_text(encoding="utf-8")
    file.write_text(content.replace('"max_concurrent": 100', '"max_waiting": 1'), encoding="utf-8")
    return file.parent


async def test_run_beyond_the_limit_is_queued_and_the_next_is_rejected_with_429(
    tmp_path: Path,
) -> None:
    folder = write_serial_guide(tmp_path / "agents")
    trigger_body, key = {"input_data": {"topic": "bees"}}, {"Idempotency-Key": "once"}
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:

        async def trigger(status: int = 202) -> str:
            response = await home.request(
                "POST", "/api/agents/guide/trigger", json=trigger_body, status=status
            )
            return str(response["status"])

        first_run, session = await home.start_waiting_run()
        assert await trigger() == "started"
        assert await trigger() == "queued"
        rejection = await home.http.post("/api/agents/guide/trigger", json=trigger_body, headers=key)
        body = {"message": "Ada", "session_id": session}
        await home.request("POST", "/api/agents/guide/chat", json=body)
        await home.wait_for_end("guide", first_run)
        repeated_response = await home.http.post("/api/agents/guide/trigger", json=trigger_body, headers=key)

        assert (rejection.status_code, rejection.headers["Retry-After"]) == (429, "5")
        assert all(phrase in rejection.json()["title"] for phrase in ("1 runs", "'start'", "'guide'"))
        assert (repeated_response.status_code, repeated_response.json()["status"]) == (202, "queued")


async def test_waiting_chat_does_not_block_the_next_trigger(tmp_path: Path) -> None:
    """
    B109: an entry point that runs one execution at a time starts another while its run waits for its user.
    """
    file = write_guide(tmp_path / "agents" / "guide") / "agent.py"
    content = file.read_text(encoding="utf-8")
    file.write_text(content.replace(', "max_concurrent": 100', ""), encoding="utf-8")
    async with run_agent_service(tmp_path, agents={"load": [str(file.parent)]}) as home:
        first_run, session = await home.start_waiting_run()
        second_run, second_session = await home.start_waiting_run()
        body = {"message": "Ada", "session_id": second_session}
        await home.request("POST", "/api/agents/guide/chat", json=body)
        finished_run = await home.wait_for_end("guide", second_run)
        first_state = await home.request("GET", f"/api/agents/guide/executions/{first_run}")

    assert session != second_session
    assert (finished_run["status"], first_state["status"]) == ("completed", "active")


@pytest.mark.parametrize("command", ["resume", "restore"])
async def test_run_that_waits_for_another_is_reported_as_queued(tmp_path: Path, command: str) -> None:
    """B108: `resume` and `restore` report `queued` while earlier runs have not ended."""
    async with run_agent_service(
        tmp_path, agents={"load": [str(write_serial_guide(tmp_path / "agents"))]}
    ) as home:
        first_run, session = await home.start_waiting_run()
        await home.request("POST", "/api/agents/guide/stop", json={"execution_id": first_run})
        await home.start_waiting_run()
        await home.start_waiting_run()

        if command == "resume":
            body = await home.request(
                "POST", "/api/agents/guide/resume", json={"session_id": session}, status=202
            )
        else:
            path = f"/api/agents/guide/sessions/{session}/checkpoints"
            newest = (await home.request("GET", path))["checkpoints"][0]["checkpoint_id"]
            body = await home.request("POST", f"{path}/{newest}/restore", status=202)
        row = await home.request("GET", f"/api/agents/guide/executions/{first_run}")

    assert (body["status"], row["status"]) == ("queued", "queued")
    assert (body["execution_id"], body["session_id"]) == (first_run, session)


async def test_restore_of_a_session_with_a_run_is_queued(tmp_path: Path) -> None:
    """B108: a checkpoint of an older run is restored once the newer run of its session has ended."""
    folder = write_guide(tmp_path / "agents" / "guide")
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:
        first_run, session = await home.complete_run()
        path = f"/api/agents/guide/sessions/{session}/checkpoints"
        newest = (await home.request("GET", path))["checkpoints"][0]["checkpoint_id"]
        second_run, _ = await home.start_waiting_run(session_id=session)

        body = await home.request("POST", f"{path}/{newest}/restore", status=202)
        row = await home.request("GET", f"/api/agents/guide/executions/{first_run}")

    assert first_run != second_run
    assert (body["status"], row["status"]) == ("queued", "queued")


async def test_session_with_a_queued_restore_is_not_deleted(tmp_path: Path) -> None:
    async with run_agent_service(
        tmp_path, agents={"load": [str(write_serial_guide(tmp_path / "agents"))]}
    ) as home:
        first_run, session = await home.complete_run()
        path = f"/api/agents/guide/sessions/{session}"
        newest = (await home.request("GET", f"{path}/checkpoints"))["checkpoints"][-1]["checkpoint_id"]
        other_runs = [await home.start_waiting_run() for _ in range(2)]
        await home.request("POST", f"{path}/checkpoints/{newest}/restore", status=202)

        rejection = await home.request("DELETE", path, status=409)
        for other_run, _ in other_runs:
            await home.request("POST", "/api/agents/guide/stop", json={"execution_id": other_run})
        resumed_session = await home.wait_for_question("guide", first_run)
        await home.request("POST", "/api/agents/guide/stop", json={"execution_id": first_run})
        await home.request("DELETE", path, status=204)

    assert repr(first_run) in rejection["title"]
    assert resumed_session == session


@pytest.mark.parametrize("command", ["resume", "restore"])
async def test_session_claimed_by_another_process_is_a_conflict_and_starts_no_run(
    tmp_path: Path, command: str
) -> None:
    """B108: `resume` and `restore` return 409 while another process runs an execution of the session."""
    folder = write_guide(tmp_path / "agents" / "guide")
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:
        first_run, session = await home.start_waiting_run()
        await home.request("POST", "/api/agents/guide/stop", json={"execution_id": first_run})
        path = f"/api/agents/guide/sessions/{session}/checkpoints"
        newest = (await home.request("GET", path))["checkpoints"][0]["checkpoint_id"]
        store = home.service.agents.get("guide").runtime.session_store()
        foreign_claim = store.claim(store.open(session))
        try:
            if command == "resume":
                body = {"session_id": session}
                rejection = await home.request("POST", "/api/agents/guide/resume", json=body, status=409)
            else:
                rejection = await home.request("POST", f"{path}/{newest}/restore", status=409)
        finally:
            foreign_claim.release()
        failed_runs = await home.request("GET", "/api/audit?type=execution_failed")

    assert f"{session!r} is busy" in rejection["title"]
    assert failed_runs["events"] == []


async def test_termination_reports_a_thread_that_is_still_running(
    tmp_path: Path,
) -> None:
    continue_file, started_file = tmp_path / "go", tmp_path / "began"
    hanging_code = f"""
import time
from pathlib import Path

def add(a, b):
    Path({str(started_file)!r}).touch()
    while not Path({str(continue_file)!r}).exists():
        time.sleep(0.01)
"""
    folder = adder(tmp_path / "agents" / "adder", hanging_code)
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:

        async def read_threads_left() -> str:
            lines = (await home.http.get("/metrics")).text.splitlines()
            return next(line for line in lines if line.startswith("queenright_threads_left "))

        await home.request(
            "POST", "/api/agents/adder/trigger", json={"input_data": {"a": 1, "b": 2}}, status=202
        )
        await until(started_file.exists, "the function is running")
        body = await home.request(
            "POST", "/api/agents/adder/terminate", json={"reason": "it hangs"}, status=202
        )
        audit = await home.request("GET", "/api/audit?type=intervention_recorded&agent_id=adder")
        remaining_threads = await read_threads_left()
        continue_file.touch()
        assert "one of its functions is still running in a thread" in body["detail"]
        assert body["detail"] == audit["events"][0]["data"]["detail"]
        assert remaining_threads.endswith(" 1.0")
        for _ in range(1000):
            if (await read_threads_left()).endswith(" 0.0"):
                break
        else:
            raise AssertionError("the thread has not ended")
