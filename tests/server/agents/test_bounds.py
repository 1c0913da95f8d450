"""Limits of concurrent and waiting runs of a loaded agent, and the answers beyond them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.agents import adder
from tests.server.agents.parts import run_agent_service, write_guide
from tests.waiting import until


def write_serial_guide(roots: Path) -> Path:
    """Write a guide that runs one execution at a time, and queues at most one more."""
    file = write_guide(roots / "guide") / "agent.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"max_concurrent": 100', '"max_waiting": 1'), encoding="utf-8")
    return file.parent


async def test_waiting_run_is_queued_and_the_limit_answers_429(
    tmp_path: Path,
) -> None:
    folder = write_serial_guide(tmp_path / "agents")
    given, key = {"input_data": {"topic": "bees"}}, {"Idempotency-Key": "once"}
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:

        async def trigger(status: int = 202) -> str:
            answer = await home.request("POST", "/api/agents/guide/trigger", json=given, status=status)
            return str(answer["status"])

        first, session = await home.start_waiting_run()
        assert await trigger() == "started"
        assert await trigger() == "queued"
        refused = await home.http.post("/api/agents/guide/trigger", json=given, headers=key)
        body = {"message": "Ada", "session_id": session}
        await home.request("POST", "/api/agents/guide/chat", json=body)
        await home.wait_for_end("guide", first)
        repeated = await home.http.post("/api/agents/guide/trigger", json=given, headers=key)

        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        assert all(part in refused.json()["title"] for part in ("1 runs", "'start'", "'guide'"))
        assert (repeated.status_code, repeated.json()["status"]) == (202, "queued")


async def test_waiting_chat_does_not_hold_up_the_next_trigger(tmp_path: Path) -> None:
    """B109: an entry point with one run at a time starts another run while its run waits for its user."""
    file = write_guide(tmp_path / "agents" / "guide") / "agent.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(', "max_concurrent": 100', ""), encoding="utf-8")
    async with run_agent_service(tmp_path, agents={"load": [str(file.parent)]}) as home:
        first, session = await home.start_waiting_run()
        second, other = await home.start_waiting_run()
        body = {"message": "Ada", "session_id": other}
        await home.request("POST", "/api/agents/guide/chat", json=body)
        ended = await home.wait_for_end("guide", second)
        still = await home.request("GET", f"/api/agents/guide/executions/{first}")

    assert session != other
    assert (ended["status"], still["status"]) == ("completed", "active")


@pytest.mark.parametrize("how", ["resume", "restore"])
async def test_waiting_run_is_reported_as_queued(tmp_path: Path, how: str) -> None:
    """B108: `resume` and `restore` report `queued` while earlier runs wait."""
    async with run_agent_service(
        tmp_path, agents={"load": [str(write_serial_guide(tmp_path / "agents"))]}
    ) as home:
        first, session = await home.start_waiting_run()
        await home.request("POST", "/api/agents/guide/stop", json={"execution_id": first})
        await home.start_waiting_run()
        await home.start_waiting_run()

        if how == "resume":
            body = await home.request(
                "POST", "/api/agents/guide/resume", json={"session_id": session}, status=202
            )
        else:
            path = f"/api/agents/guide/sessions/{session}/checkpoints"
            newest = (await home.request("GET", path))["checkpoints"][0]["checkpoint_id"]
            body = await home.request("POST", f"{path}/{newest}/restore", status=202)
        row = await home.request("GET", f"/api/agents/guide/executions/{first}")

    assert (body["status"], row["status"]) == ("queued", "queued")
    assert (body["execution_id"], body["session_id"]) == (first, session)


async def test_restore_behind_a_run_of_its_session_is_queued(tmp_path: Path) -> None:
    """B108: a checkpoint of an older run is restored after the newer run of its session."""
    folder = write_guide(tmp_path / "agents" / "guide")
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:
        first, session = await home.complete_run()
        path = f"/api/agents/guide/sessions/{session}/checkpoints"
        newest = (await home.request("GET", path))["checkpoints"][0]["checkpoint_id"]
        second, _ = await home.start_waiting_run(session_id=session)

        body = await home.request("POST", f"{path}/{newest}/restore", status=202)
        row = await home.request("GET", f"/api/agents/guide/executions/{first}")

    assert first != second
    assert (body["status"], row["status"]) == ("queued", "queued")


async def test_session_with_a_queued_restore_is_not_deleted(tmp_path: Path) -> None:
    async with run_agent_service(
        tmp_path, agents={"load": [str(write_serial_guide(tmp_path / "agents"))]}
    ) as home:
        first, session = await home.complete_run()
        path = f"/api/agents/guide/sessions/{session}"
        newest = (await home.request("GET", f"{path}/checkpoints"))["checkpoints"][-1]["checkpoint_id"]
        others = [await home.start_waiting_run() for _ in range(2)]
        await home.request("POST", f"{path}/checkpoints/{newest}/restore", status=202)

        refused = await home.request("DELETE", path, status=409)
        for other, _ in others:
            await home.request("POST", "/api/agents/guide/stop", json={"execution_id": other})
        completed = await home.wait_for_question("guide", first)
        await home.request("POST", "/api/agents/guide/stop", json={"execution_id": first})
        await home.request("DELETE", path, status=204)

    assert repr(first) in refused["title"]
    assert completed == session


@pytest.mark.parametrize("how", ["resume", "restore"])
async def test_session_claimed_by_another_process_is_a_conflict_and_starts_no_run(
    tmp_path: Path, how: str
) -> None:
    """B108: `resume` and `restore` return 409 while another process runs an execution in the session."""
    folder = write_guide(tmp_path / "agents" / "guide")
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:
        first, session = await home.start_waiting_run()
        await home.request("POST", "/api/agents/guide/stop", json={"execution_id": first})
        path = f"/api/agents/guide/sessions/{session}/checkpoints"
        newest = (await home.request("GET", path))["checkpoints"][0]["checkpoint_id"]
        store = home.service.agents.get("guide").runtime.session_store()
        foreign_claim = store.claim(store.open(session))
        try:
            if how == "resume":
                body = {"session_id": session}
                refused = await home.request("POST", "/api/agents/guide/resume", json=body, status=409)
            else:
                refused = await home.request("POST", f"{path}/{newest}/restore", status=409)
        finally:
            foreign_claim.release()
        failed = await home.request("GET", "/api/audit?type=execution_failed")

    assert f"{session!r} is busy" in refused["title"]
    assert failed["events"] == []


async def test_termination_reports_a_thread_that_still_runs(
    tmp_path: Path,
) -> None:
    go, began = tmp_path / "go", tmp_path / "began"
    hanging = f"""
import time
from pathlib import Path

def add(a, b):
    Path({str(began)!r}).touch()
    while not Path({str(go)!r}).exists():
        time.sleep(0.01)
"""
    folder = adder(tmp_path / "agents" / "adder", hanging)
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:

        async def read_threads_left() -> str:
            lines = (await home.http.get("/metrics")).text.splitlines()
            return next(line for line in lines if line.startswith("queenright_threads_left "))

        await home.request(
            "POST", "/api/agents/adder/trigger", json={"input_data": {"a": 1, "b": 2}}, status=202
        )
        await until(began.exists, "its function is running")
        body = await home.request(
            "POST", "/api/agents/adder/terminate", json={"reason": "it hangs"}, status=202
        )
        audit = await home.request("GET", "/api/audit?type=intervention_recorded&agent_id=adder")
        during = await read_threads_left()
        go.touch()
        assert "one of its functions is still running in a thread" in body["detail"]
        assert body["detail"] == audit["events"][0]["data"]["detail"]
        assert during.endswith(" 1.0")
        for _ in range(1000):
            if (await read_threads_left()).endswith(" 0.0"):
                break
        else:
            raise AssertionError("the thread has not ended")
