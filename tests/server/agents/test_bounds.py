"""What an agent that is loaded may take of the service, and what it hears beyond that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.agents import adder
from tests.server.agents.parts import guide, house
from tests.waiting import until


def one_at_a_time(roots: Path) -> Path:
    """Write a guide that takes one run at a time, and lets none wait for its user beside it."""
    file = guide(roots / "guide") / "agent.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"max_concurrent": 100', '"max_waiting": 1'), encoding="utf-8")
    return file.parent


async def test_waiting_run_is_queued_and_the_limit_answers_429(
    tmp_path: Path,
) -> None:
    folder = one_at_a_time(tmp_path / "agents")
    given, key = {"input_data": {"topic": "bees"}}, {"Idempotency-Key": "once"}
    async with house(tmp_path, agents={"load": [str(folder)]}) as home:

        async def trigger(status: int = 202) -> str:
            answer = await home.ask("POST", "/api/agents/guide/trigger", json=given, status=status)
            return str(answer["status"])

        first, session = await home.begun()
        assert await trigger() == "started"
        assert await trigger() == "queued"
        refused = await home.http.post("/api/agents/guide/trigger", json=given, headers=key)
        body = {"message": "Ada", "session_id": session}
        await home.ask("POST", "/api/agents/guide/chat", json=body)
        await home.over("guide", first)
        again = await home.http.post("/api/agents/guide/trigger", json=given, headers=key)

        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        assert all(part in refused.json()["title"] for part in ("1 runs", "'start'", "'guide'"))
        assert (again.status_code, again.json()["status"]) == (202, "queued")


async def test_waiting_chat_does_not_hold_up_the_next_trigger(tmp_path: Path) -> None:
    """B109: an entry point of one run at a time takes another one while its run waits for its user."""
    file = guide(tmp_path / "agents" / "guide") / "agent.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(', "max_concurrent": 100', ""), encoding="utf-8")
    async with house(tmp_path, agents={"load": [str(file.parent)]}) as home:
        first, session = await home.begun()
        second, other = await home.begun()
        body = {"message": "Ada", "session_id": other}
        await home.ask("POST", "/api/agents/guide/chat", json=body)
        ended = await home.over("guide", second)
        still = await home.ask("GET", f"/api/agents/guide/executions/{first}")

    assert session != other
    assert (ended["status"], still["status"]) == ("completed", "active")


@pytest.mark.parametrize("how", ["resume", "restore"])
async def test_waiting_run_is_reported_as_queued(tmp_path: Path, how: str) -> None:
    """B108: `resume` and `restore` say `queued` while other runs come first."""
    async with house(tmp_path, agents={"load": [str(one_at_a_time(tmp_path / "agents"))]}) as home:
        first, session = await home.begun()
        await home.ask("POST", "/api/agents/guide/stop", json={"execution_id": first})
        await home.begun()
        await home.begun()

        if how == "resume":
            body = await home.ask(
                "POST", "/api/agents/guide/resume", json={"session_id": session}, status=202
            )
        else:
            path = f"/api/agents/guide/sessions/{session}/checkpoints"
            newest = (await home.ask("GET", path))["checkpoints"][0]["checkpoint_id"]
            body = await home.ask("POST", f"{path}/{newest}/restore", status=202)
        row = await home.ask("GET", f"/api/agents/guide/executions/{first}")

    assert (body["status"], row["status"]) == ("queued", "queued")
    assert (body["execution_id"], body["session_id"]) == (first, session)


async def test_restore_behind_a_run_of_its_session_is_queued(tmp_path: Path) -> None:
    """B108: a checkpoint of an older run waits for the newer run of its session."""
    folder = guide(tmp_path / "agents" / "guide")
    async with house(tmp_path, agents={"load": [str(folder)]}) as home:
        first, session = await home.done()
        path = f"/api/agents/guide/sessions/{session}/checkpoints"
        newest = (await home.ask("GET", path))["checkpoints"][0]["checkpoint_id"]
        second, _ = await home.begun(session_id=session)

        body = await home.ask("POST", f"{path}/{newest}/restore", status=202)
        row = await home.ask("GET", f"/api/agents/guide/executions/{first}")

    assert first != second
    assert (body["status"], row["status"]) == ("queued", "queued")


async def test_session_with_a_queued_restore_is_not_deleted(tmp_path: Path) -> None:
    async with house(tmp_path, agents={"load": [str(one_at_a_time(tmp_path / "agents"))]}) as home:
        first, session = await home.done()
        path = f"/api/agents/guide/sessions/{session}"
        newest = (await home.ask("GET", f"{path}/checkpoints"))["checkpoints"][-1]["checkpoint_id"]
        others = [await home.begun() for _ in range(2)]
        await home.ask("POST", f"{path}/checkpoints/{newest}/restore", status=202)

        refused = await home.ask("DELETE", path, status=409)
        for other, _ in others:
            await home.ask("POST", "/api/agents/guide/stop", json={"execution_id": other})
        goes_on = await home.waits("guide", first)
        await home.ask("POST", "/api/agents/guide/stop", json={"execution_id": first})
        await home.ask("DELETE", path, status=204)

    assert repr(first) in refused["title"]
    assert goes_on == session


@pytest.mark.parametrize("how", ["resume", "restore"])
async def test_session_claimed_by_another_process_is_a_conflict_and_starts_no_run(
    tmp_path: Path, how: str
) -> None:
    """B108: `resume` and `restore` are refused while another process runs an execution in the session."""
    folder = guide(tmp_path / "agents" / "guide")
    async with house(tmp_path, agents={"load": [str(folder)]}) as home:
        first, session = await home.begun()
        await home.ask("POST", "/api/agents/guide/stop", json={"execution_id": first})
        path = f"/api/agents/guide/sessions/{session}/checkpoints"
        newest = (await home.ask("GET", path))["checkpoints"][0]["checkpoint_id"]
        store = home.service.agents.get("guide").runtime.session_store()
        theirs = store.claim(store.open(session))
        try:
            if how == "resume":
                body = {"session_id": session}
                refused = await home.ask("POST", "/api/agents/guide/resume", json=body, status=409)
            else:
                refused = await home.ask("POST", f"{path}/{newest}/restore", status=409)
        finally:
            theirs.release()
        failed = await home.ask("GET", "/api/audit?type=execution_failed")

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
    async with house(tmp_path, agents={"load": [str(folder)]}) as home:

        async def left() -> str:
            lines = (await home.http.get("/metrics")).text.splitlines()
            return next(line for line in lines if line.startswith("queenright_threads_left "))

        await home.ask("POST", "/api/agents/adder/trigger", json={"input_data": {"a": 1, "b": 2}}, status=202)
        await until(began.exists, "its function is at work")
        body = await home.ask("POST", "/api/agents/adder/terminate", json={"reason": "it hangs"}, status=202)
        audit = await home.ask("GET", "/api/audit?type=intervention_recorded&agent_id=adder")
        during = await left()
        go.touch()
        assert "one of its functions is still running in a thread" in body["detail"]
        assert body["detail"] == audit["events"][0]["data"]["detail"]
        assert during.endswith(" 1.0")
        for _ in range(1000):
            if (await left()).endswith(" 0.0"):
                break
        else:
            raise AssertionError("it has ended")
