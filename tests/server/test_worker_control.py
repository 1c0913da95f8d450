"""A worker of our instrumentation in another thread, told something by the service, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from queenright.health.interventions.target import Target
from queenright.instrumentation import Nudge, Telemetry, Worker
from queenright.server.up import Running
from tests.waiting import until

BEE = Target(agent_id="bee/1", session_id="s", incarnation_id="i")


@asynccontextmanager
async def working(running: Running, **more: Any) -> AsyncIterator[Worker]:
    """Run a worker that the service knows and reaches."""
    agent = more.pop("agent", BEE.agent_id)
    telemetry = await asyncio.to_thread(Telemetry, running.otlp_url)
    worker = Worker(
        agent,
        session_id=BEE.session_id,
        incarnation_id=BEE.incarnation_id,
        task_id="forage",
        telemetry=telemetry,
        registry=CollectorRegistry(),
        control_endpoint=running.url,
        clock=running.service.clock,
        **more,
    )
    try:
        worker.start()
        await until(
            lambda: (
                running.service.instructions.reaches(BEE)
                and running.service.monitor.get(BEE.agent_id, BEE.session_id) is not None
            ),
            "the worker asks",
        )
        yield worker
    finally:
        worker.close()
        await asyncio.to_thread(telemetry.close)


async def test_a_nudge_gets_into_the_agents_context(running: Running, http: httpx.AsyncClient) -> None:
    """002 §11: a nudge reaches the context of an agent in another process."""
    context: list[Nudge] = []
    async with working(running, on_nudge=context.append):
        nudged = await http.post("/api/agents/bee%2F1/nudge", json={"message": "What blocks you?"})
        await until(lambda: bool(context), "the nudge arrives")

    assert nudged.status_code == 202
    assert [nudge.message for nudge in context] == ["What blocks you?"]


async def test_an_agent_that_is_terminated_says_where_its_state_is(
    running: Running, http: httpx.AsyncClient
) -> None:
    """002 §11: termination stops an agent cleanly and keeps its state."""
    reasons: list[str] = []

    def stop(reason: str) -> str:
        reasons.append(reason)
        return "cp-7"

    async with working(running, on_terminate=stop):
        done = await http.post("/api/agents/bee%2F1/terminate", json={"reason": "it loops"}, timeout=30)

    assert (done.json()["terminated"], done.json()["checkpoint_id"]) == (True, "cp-7")
    assert len(reasons) == 1


async def test_an_agent_that_takes_instructions_by_hand_is_stopped_when_its_run_ends(
    running: Running, http: httpx.AsyncClient
) -> None:
    async with working(running, control=True) as worker:
        stopping = asyncio.create_task(
            http.post("/api/agents/bee%2F1/terminate", json={"reason": "it loops"}, timeout=30)
        )
        taken: list[Any] = []

        def told() -> bool:
            taken.extend(worker.instructions())
            return bool(taken)

        await until(told, "it is told")
        worker.checkpoint("cp-8")
        worker.close()
        done = (await stopping).json()

    assert (done["terminated"], done["checkpoint_id"]) == (True, "cp-8")


async def test_a_function_that_is_missing_is_an_answer_too(running: Running, http: httpx.AsyncClient) -> None:
    async with working(running, on_nudge=lambda nudge: None):
        done = await http.post("/api/agents/bee%2F1/terminate", json={"reason": "it loops"}, timeout=30)

    assert done.json()["terminated"] is False
    assert "on_terminate" in done.text


async def test_a_worker_whose_name_breaks_a_line_is_reached(
    running: Running, http: httpx.AsyncClient
) -> None:
    context: list[Nudge] = []
    async with working(running, agent="\nbee/1\x07", on_nudge=context.append):
        nudged = await http.post("/api/agents/bee%2F1/nudge", json={"message": "What blocks you?"})
        await until(lambda: bool(context), "the nudge arrives")

    assert (nudged.status_code, [nudge.message for nudge in context]) == (202, ["What blocks you?"])


async def test_a_foreign_worker_may_ask_by_the_raw_name_that_its_spans_and_heartbeats_carry(
    running: Running, http: httpx.AsyncClient
) -> None:
    raw = "new%0Aline%1B%E2%80%A8"
    beat = await http.post(
        "/api/heartbeats",
        json={"agent_id": "new\nline\x1b\u2028", "session_id": "s\n", "incarnation_id": "\ti"},
    )
    asked = {"session_id": "s\n", "incarnation_id": "\ti"}
    assert (await http.get(f"/api/agents/{raw}/instructions", params=asked)).json() == {"instructions": []}
    nudged = await http.post("/api/agents/new%20line/nudge", json={"message": "What blocks you?"})
    [told] = (await http.get(f"/api/agents/{raw}/instructions", params=asked)).json()["instructions"]
    answered = await http.post(
        f"/api/agents/{raw}/instructions/{told['instruction_id']}/answer", json={**asked, "outcome": "done"}
    )
    health = await http.get(f"/api/agents/{raw}/health")

    assert (beat.status_code, beat.json()) == (202, {"agent_id": "new line"})
    assert (nudged.status_code, told["message"]) == (202, "What blocks you?")
    assert answered.status_code == 204
    assert (health.status_code, health.json()["agent_id"]) == (200, "new line")


async def test_an_asker_without_a_name_is_refused(http: httpx.AsyncClient) -> None:
    params = {"session_id": "s", "incarnation_id": "i"}
    found = await http.get("/api/agents/%0A%07/instructions", params=params)

    assert (found.status_code, "names no worker" in found.text) == (404, True)
