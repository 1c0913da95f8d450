"""An instrumented worker in another thread, which the service controls over real sockets."""

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
async def run_worker(running: RunningService, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker that the service monitors and can reach."""
    agent = options.pop("agent", BEE.agent_id)
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
        **options,
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


async def test_nudge_reaches_the_context_of_the_agent(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """002 §11: a nudge reaches the context of an agent in another process."""
    context: list[Nudge] = []
    async with run_worker(running, on_nudge=context.append):
        nudge_response = await http.post("/api/agents/bee%2F1/nudge", json={"message": "What blocks you?"})
        await until(lambda: bool(context), "the nudge has arrived")

    assert nudge_response.status_code == 202
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


async def test_worker_that_continues_after_its_termination_is_paged_about_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ``on_terminate`` callback that stops nothing must not clear the alert for good."""
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
            monitored_worker = running.service.monitor.get(BEE.agent_id, BEE.session_id)
            return monitored_worker is not None and not monitored_worker.vitals.has_ended

        await until(is_monitored_again, "the worker is monitored again")

        async def is_paged() -> bool:
            work_in_loop(worker, 1)
            active_notifications = await running.service.store.read(read_active)
            notification_texts = [
                alert.annotations["suggested_action"]
                for alert in active_notifications
                if alert.ends_at is None
            ]
            return any(
                "end its process yourself" in notification_text for notification_text in notification_texts
            )

        for _ in range(1200):
            if await is_paged():
                break
            await asyncio.sleep(0.05)
        assert await is_paged()
        [row] = (await http.get("/api/interventions")).json()["interventions"]

    assert (row["kind"], row["outcome"]) == ("terminate", "unconfirmed")
    assert "it is still working" in row["detail"]


async def test_agent_that_polls_itself_is_terminated_when_its_run_ends(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    async with run_worker(running, control=True) as worker:
        termination_task = asyncio.create_task(
            http.post("/api/agents/bee%2F1/terminate", json={"reason": "it loops"}, timeout=30)
        )
        instructions: list[Any] = []

        def is_notified() -> bool:
            instructions.extend(worker.instructions())
            return bool(instructions)

        await until(is_notified, "the worker has the instruction")
        worker.checkpoint("cp-8")
        worker.close()
        result = (await termination_task).json()

    assert (result["terminated"], result["checkpoint_id"]) == (True, "cp-8")


async def test_termination_without_a_callback_is_reported_as_unsupported(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    async with run_worker(running, on_nudge=lambda nudge: None):
        response = await http.post("/api/agents/bee%2F1/terminate", json={"reason": "it loops"}, timeout=30)

    assert response.json()["terminated"] is False
    assert "on_terminate" in response.text


@pytest.mark.parametrize("has_functions", [True, False])
async def test_worker_that_polls_another_service_is_unreachable_with_a_remedy(
    running: RunningService, http: httpx.AsyncClient, has_functions: bool
) -> None:
    """A worker with functions that polls another port is not advised to add functions."""
    other_service = socket.create_server(
        ("127.0.0.1", 0)
    )  # This service accepts the poll but never responds.
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
        nudge_result = (await http.post("/api/agents/bee/nudge", json={"message": "?"})).json()
        other_service.close()
    await asyncio.to_thread(telemetry.close)

    assert nudge_result["outcome"] == "unreachable"
    assert "the worker does not fetch instructions from this service" in nudge_result["detail"]
    assert "QUEENRIGHT_ENDPOINT" in nudge_result["detail"]
    assert "stop its process" not in nudge_result["detail"]
    assert ("Give its Worker" in nudge_result["detail"]) is not has_functions


async def test_agent_without_a_worker_object_is_unreachable_with_a_remedy(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """An agent with plain OpenTelemetry has no Worker object to which a function could be added."""
    start_event = AgentEvent(
        type=EventType.EXECUTION_STARTED,
        time=running.service.clock(),
        agent_id="team/plain",
        session_id="s",
        data={"start_records": False},
    )
    await running.service.bus.publish(start_event)
    await until(lambda: running.service.monitor.get("team/plain") is not None, "the agent is known")
    nudge_result = (await http.post("/api/agents/team%2Fplain/nudge", json={"message": "?"})).json()

    assert nudge_result["outcome"] == "unreachable"
    assert "its Worker" not in nudge_result["detail"]
    assert "poll GET /api/agents/team%2Fplain/instructions" in nudge_result["detail"]
    assert "queenright connect" in nudge_result["detail"]


async def test_worker_whose_name_has_a_line_break_can_be_nudged(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    context: list[Nudge] = []
    async with run_worker(running, agent="\nbee/1\x07", on_nudge=context.append):
        nudge_response = await http.post("/api/agents/bee%2F1/nudge", json={"message": "What blocks you?"})
        await until(lambda: bool(context), "the nudge has arrived")

    assert (nudge_response.status_code, [nudge.message for nudge in context]) == (202, ["What blocks you?"])


async def test_worker_without_our_library_may_poll_with_its_raw_name(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    raw_name = "new%0Aline%1B%E2%80%A8"
    heartbeat = await http.post(
        "/api/heartbeats",
        json={"agent_id": "new\nline\x1b\u2028", "session_id": "s\n", "incarnation_id": "\ti"},
    )
    parameters = {"session_id": "s\n", "incarnation_id": "\ti"}
    assert (await http.get(f"/api/agents/{raw_name}/instructions", params=parameters)).json() == {
        "instructions": []
    }
    nudge_response = await http.post("/api/agents/new%20line/nudge", json={"message": "What blocks you?"})
    [instructions] = (await http.get(f"/api/agents/{raw_name}/instructions", params=parameters)).json()[
        "instructions"
    ]
    answer_response = await http.post(
        f"/api/agents/{raw_name}/instructions/{instructions['instruction_id']}/answer",
        json={**parameters, "outcome": "done"},
    )
    health = await http.get(f"/api/agents/{raw_name}/health")

    assert (heartbeat.status_code, heartbeat.json()) == (202, {"agent_id": "new line"})
    assert (nudge_response.status_code, instructions["message"]) == (202, "What blocks you?")
    assert answer_response.status_code == 204
    assert (health.status_code, health.json()["agent_id"]) == (200, "new line")


async def test_poll_without_an_agent_name_is_rejected(http: httpx.AsyncClient) -> None:
    params = {"session_id": "s", "incarnation_id": "i"}
    response = await http.get("/api/agents/%0A%07/instructions", params=params)

    assert (response.status_code, "names no worker" in response.text) == (404, True)
