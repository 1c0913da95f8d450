"""A worker of the instrumentation in another thread, controlled by the service over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from queenright.alerting.notification_table import read_active
from queenright.health.interventions.target import Target
from queenright.instrumentation import Nudge, Telemetry, Worker
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService, serving
from queenright.server.settings import load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.waiting import until

BEE = Target(agent_id="bee/1", session_id="s", incarnation_id="i")


@asynccontextmanager
async def run_worker(running: RunningService, **more: Any) -> AsyncIterator[Worker]:
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
                running.service.instructions.can_reach(BEE)
                and running.service.monitor.get(BEE.agent_id, BEE.session_id) is not None
            ),
            "the worker polls",
        )
        yield worker
    finally:
        worker.close()
        await asyncio.to_thread(telemetry.close)


async def test_nudge_reaches_the_agents_context(running: RunningService, http: httpx.AsyncClient) -> None:
    """002 §11: a nudge reaches the context of an agent in another process."""
    context: list[Nudge] = []
    async with run_worker(running, on_nudge=context.append):
        nudged = await http.post("/api/agents/bee%2F1/nudge", json={"message": "What blocks you?"})
        await until(lambda: bool(context), "the nudge has arrived")

    assert nudged.status_code == 202
    assert [nudge.message for nudge in context] == ["What blocks you?"]


async def test_terminated_agent_reports_its_checkpoint(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """002 §11: termination stops an agent cleanly and keeps its state."""
    reasons: list[str] = []

    def stop(reason: str) -> str:
        reasons.append(reason)
        return "cp-7"

    async with run_worker(running, on_terminate=stop):
        response = await http.post("/api/agents/bee%2F1/terminate", json={"reason": "it loops"}, timeout=30)

    assert (response.json()["terminated"], response.json()["checkpoint_id"]) == (True, "cp-7")
    assert len(reasons) == 1


async def test_worker_that_continues_after_its_termination_is_paged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ``on_terminate`` that stops nothing causes no false all-clear."""
    monkeypatch.setattr("queenright.health.monitoring.monitor.CLOCK_TOLERANCE_SECONDS", 1)
    settings = load_settings(
        defaults=DEMO_DEFAULTS | {"storage": tmp_path / "storage"},
        http={"port": 0},
        otlp={"port": 0},
    )

    def work_in_loop(worker: Worker, times: int) -> None:
        for _ in range(times):
            with worker.step("forage") as step, step.tool("search", {"q": "hive"}) as call:
                call.result("nothing")

    async with (
        serving(settings) as running,
        httpx.AsyncClient(base_url=running.url, trust_env=False) as http,
        run_worker(running, on_terminate=lambda reason: None) as worker,
    ):
        tickets = running.service.tickets
        work_in_loop(worker, 20)
        await until(lambda: bool(tickets.open_tickets()), "the loop has a ticket")
        response = await http.post("/api/agents/bee%2F1/terminate", json={"reason": "it loops"}, timeout=30)
        assert response.json()["terminated"] is True
        await until(lambda: not tickets.open_tickets(), "the ticket closes")

        def is_monitored_again() -> bool:
            work_in_loop(worker, 1)
            found = running.service.monitor.get(BEE.agent_id, BEE.session_id)
            return found is not None and not found.vitals.has_ended

        await until(is_monitored_again, "the worker is monitored again")

        async def is_paged() -> bool:
            work_in_loop(worker, 1)
            active = await running.service.store.read(read_active)
            texts = [alert.annotations["suggested_action"] for alert in active if alert.ends_at is None]
            return any("end its process yourself" in text for text in texts)

        for _ in range(1200):
            if await is_paged():
                break
            await asyncio.sleep(0.05)
        assert await is_paged()
        [row] = (await http.get("/api/interventions")).json()["interventions"]

    assert (row["kind"], row["outcome"]) == ("terminate", "unconfirmed")
    assert "it is still working" in row["detail"]


async def test_agent_polling_manually_is_terminated_when_its_run_ends(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    async with run_worker(running, control=True) as worker:
        stopping = asyncio.create_task(
            http.post("/api/agents/bee%2F1/terminate", json={"reason": "it loops"}, timeout=30)
        )
        received: list[Any] = []

        def is_notified() -> bool:
            received.extend(worker.instructions())
            return bool(received)

        await until(is_notified, "the worker has the instruction")
        worker.checkpoint("cp-8")
        worker.close()
        done = (await stopping).json()

    assert (done["terminated"], done["checkpoint_id"]) == (True, "cp-8")


async def test_missing_callback_is_answered_as_unsupported(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    async with run_worker(running, on_nudge=lambda nudge: None):
        response = await http.post("/api/agents/bee%2F1/terminate", json={"reason": "it loops"}, timeout=30)

    assert response.json()["terminated"] is False
    assert "on_terminate" in response.text


@pytest.mark.parametrize("has_functions", [True, False])
async def test_worker_polling_another_service_is_unreachable_with_a_remedy(
    running: RunningService, http: httpx.AsyncClient, has_functions: bool
) -> None:
    """A worker with functions that polls another port is not advised to add functions."""
    other_service = socket.create_server(("127.0.0.1", 0))  # accepts the poll, and never answers
    telemetry = await asyncio.to_thread(Telemetry, running.otlp_url)
    functions: dict[str, Any] = {"on_nudge": lambda nudge: None} if has_functions else {}
    worker = Worker(
        "bee",
        telemetry=telemetry,
        registry=CollectorRegistry(),
        control_endpoint=f"http://127.0.0.1:{other_service.getsockname()[1]}",
        **functions,
    )
    with worker:
        with worker.step("forage"):
            pass
        await until(lambda: running.service.monitor.get("bee") is not None, "the worker is known")
        nudged = (await http.post("/api/agents/bee/nudge", json={"message": "?"})).json()
        other_service.close()
    await asyncio.to_thread(telemetry.close)

    assert nudged["outcome"] == "unreachable"
    assert "the worker does not fetch instructions from this service" in nudged["detail"]
    assert "QUEENRIGHT_ENDPOINT" in nudged["detail"]
    assert "stop its process" not in nudged["detail"]
    assert ("Give its Worker" in nudged["detail"]) is not has_functions


async def test_agent_without_a_worker_is_unreachable_with_a_remedy_for_it(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """An agent with plain OpenTelemetry has no Worker that could have a function."""
    start = AgentEvent(
        type=EventType.EXECUTION_STARTED,
        time=running.service.clock(),
        agent_id="team/plain",
        session_id="s",
        data={"start_records": False},
    )
    await running.service.bus.publish(start)
    await until(lambda: running.service.monitor.get("team/plain") is not None, "the agent is known")
    nudged = (await http.post("/api/agents/team%2Fplain/nudge", json={"message": "?"})).json()

    assert nudged["outcome"] == "unreachable"
    assert "its Worker" not in nudged["detail"]
    assert "poll GET /api/agents/team%2Fplain/instructions" in nudged["detail"]
    assert "queenright connect" in nudged["detail"]


async def test_worker_with_a_line_break_in_its_name_is_reached(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    context: list[Nudge] = []
    async with run_worker(running, agent="\nbee/1\x07", on_nudge=context.append):
        nudged = await http.post("/api/agents/bee%2F1/nudge", json={"message": "What blocks you?"})
        await until(lambda: bool(context), "the nudge has arrived")

    assert (nudged.status_code, [nudge.message for nudge in context]) == (202, ["What blocks you?"])


async def test_foreign_worker_may_poll_with_its_raw_name(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    raw = "new%0Aline%1B%E2%80%A8"
    beat = await http.post(
        "/api/heartbeats",
        json={"agent_id": "new\nline\x1b\u2028", "session_id": "s\n", "incarnation_id": "\ti"},
    )
    parameters = {"session_id": "s\n", "incarnation_id": "\ti"}
    assert (await http.get(f"/api/agents/{raw}/instructions", params=parameters)).json() == {
        "instructions": []
    }
    nudged = await http.post("/api/agents/new%20line/nudge", json={"message": "What blocks you?"})
    [instructions] = (await http.get(f"/api/agents/{raw}/instructions", params=parameters)).json()[
        "instructions"
    ]
    answered = await http.post(
        f"/api/agents/{raw}/instructions/{instructions['instruction_id']}/answer",
        json={**parameters, "outcome": "done"},
    )
    health = await http.get(f"/api/agents/{raw}/health")

    assert (beat.status_code, beat.json()) == (202, {"agent_id": "new line"})
    assert (nudged.status_code, instructions["message"]) == (202, "What blocks you?")
    assert answered.status_code == 204
    assert (health.status_code, health.json()["agent_id"]) == (200, "new line")


async def test_poll_without_an_agent_name_is_refused(http: httpx.AsyncClient) -> None:
    params = {"session_id": "s", "incarnation_id": "i"}
    response = await http.get("/api/agents/%0A%07/instructions", params=params)

    assert (response.status_code, "names no worker" in response.text) == (404, True)
