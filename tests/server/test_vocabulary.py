"""All surfaces use the same terms: health and activity of running sessions, outcome of ended sessions."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from queenright.cli.output.text import format_local_time
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.views.worker_rows import describe_activity
from tests.health.worker_script import WorkerScript
from tests.server.conftest import looping
from tests.server.test_cli_acting import queenright
from tests.server.test_console import browser, settings
from tests.waiting import until

__all__ = ["browser", "settings"]

END_TYPES = [
    (EventType.EXECUTION_COMPLETED, {}, "completed"),
    (EventType.EXECUTION_FAILED, {"error_type": "OSError", "error": "the disk is full"}, "failed"),
    (EventType.EXECUTION_FAILED, {"error_type": "CancelledError"}, "cancelled"),
]


@pytest.mark.parametrize(("end_type", "data", "outcome"), END_TYPES)
async def test_ended_session_has_an_outcome_and_no_activity(
    running: RunningService,
    browser: httpx.AsyncClient,
    end_type: EventType,
    data: dict[str, str],
    outcome: str,
) -> None:
    """B103: an ended session has no activity."""
    [start_event, *events] = looping(running.service.clock(), times=1)
    worker_fields: dict[str, Any] = {
        "agent_id": "looper",
        "session_id": start_event.session_id,
        "incarnation_id": start_event.incarnation_id,
    }
    ended_session = AgentEvent(type=end_type, time=running.service.clock(), data=data, **worker_fields)
    await running.service.ingest([start_event, *events, ended_session])

    [row] = (await browser.get("/api/agents", headers={"Accept": "application/json"})).json()["agents"]
    metrics = (await browser.get("/metrics", headers={"Accept": "text/plain"})).text
    list_result = await queenright(running, "list", "--all")

    assert (row["ended"], row["outcome"], row["activity"], row["waiting"]) == (True, outcome, "", "")
    assert list_result.out.splitlines()[1].split()[:3] == [outcome, "looper", start_event.session_id]
    assert not re.search(r"queenright_agents\{[^}]*\} [1-9]", metrics)
    assert 'queenright_agents{state="terminated"' not in metrics
    assert not re.search(r"queenright_worker_waiting\{[^}]*\} [1-9]", metrics)


async def test_ended_session_has_its_outcome_while_its_ticket_is_open(
    running: RunningService, browser: httpx.AsyncClient
) -> None:
    """B103: the session counts as failing, and its outcome is failed."""
    clock_time = running.service.clock()
    [start_event, *events] = looping(clock_time, times=1)
    worker_fields = {
        "agent_id": "looper",
        "session_id": start_event.session_id,
        "incarnation_id": start_event.incarnation_id,
    }
    failed_event = AgentEvent(
        type=EventType.EXECUTION_FAILED,
        time=clock_time,
        data={"error_type": "OSError", "error": "x"},
        **worker_fields,
    )
    abandoned_data = {"recovery_id": "r1", "exhausted": True, "reason": "the third attempt failed"}
    abandoned_event = AgentEvent(
        type=EventType.RECOVERY_FAILED, time=clock_time, data=abandoned_data, **worker_fields
    )
    await running.service.ingest([start_event, *events, failed_event, abandoned_event])
    await until(running.service.tickets.open_tickets, "the ticket is open")

    [row] = (await browser.get("/api/agents", headers={"Accept": "application/json"})).json()["agents"]
    list_result = await queenright(running, "list")

    assert (row["health"], row["state"], row["outcome"]) == ("", "failing", "failed")
    assert list_result.out.splitlines()[1].split()[0] == "failed"


async def test_running_session_has_health_activity_and_no_outcome(
    running: RunningService, browser: httpx.AsyncClient
) -> None:
    """B103: the row has the session id."""
    [start_event, *events] = looping(running.service.clock(), times=1)
    worker_fields: dict[str, Any] = {
        "agent_id": "looper",
        "session_id": start_event.session_id,
        "incarnation_id": start_event.incarnation_id,
    }
    pause_event = AgentEvent(type=EventType.EXECUTION_PAUSED, time=running.service.clock(), **worker_fields)
    await running.service.ingest([start_event, *events, pause_event])

    [row] = (await browser.get("/api/agents", headers={"Accept": "application/json"})).json()["agents"]
    list_result = await queenright(running, "list")

    assert (row["state"], row["activity"], row["outcome"]) == ("healthy", "paused", "")
    assert row["session_id"] == start_event.session_id
    assert list_result.out.splitlines()[2].strip() == "paused"


async def test_session_limited_by_its_provider_shows_the_time_of_the_next_attempt(
    running: RunningService, browser: httpx.AsyncClient
) -> None:
    clock_time = running.service.clock()
    [start_event, *events] = looping(clock_time, times=1)
    wait_event = AgentEvent(
        type=EventType.LLM_CALL_COMPLETED,
        time=clock_time,
        agent_id="looper",
        session_id=start_event.session_id,
        incarnation_id=start_event.incarnation_id,
        data={"error_type": "RateLimitError", "error": "try again in 30m"},
    )
    await running.service.ingest([start_event, *events, wait_event])

    [row] = (await browser.get("/api/agents", headers={"Accept": "application/json"})).json()["agents"]
    list_result = await queenright(running, "list")

    assert (row["activity"], row["limited_until"]) == ("waiting to try again", clock_time + 1_800)
    assert (
        list_result.out.splitlines()[2].strip()
        == f"waiting to try again at {format_local_time(clock_time + 1_800)}"
    )


def test_activity_is_an_enum_without_outcomes() -> None:
    """B103: an ended session has no activity, and the activity of a paused session is paused."""
    script = WorkerScript().start()
    activities = [describe_activity(script.health.vitals)[1]]
    for type_, data in (
        (EventType.LLM_CALL_STARTED, {}),
        (EventType.TOOL_CALL_STARTED, {"tool": "search"}),
        (EventType.WORKER_WAITING, {"reason": "children"}),
        (EventType.WORKER_WAITING, {"reason": "user_input"}),
        (EventType.EXECUTION_PAUSED, {}),
        (EventType.EXECUTION_FAILED, {"error_type": "OSError"}),
    ):
        script.report_event(type_, data)
        activities.append(describe_activity(script.health.vitals)[1])

    assert activities == [
        "idle",
        "working: model",
        "working: search",
        "waiting for its sub-agents",
        "waiting for its user",
        "paused",
        "",
    ]
    assert script.state is HealthState.HEALTHY
    assert FindingKind.STALL not in script.list_finding_kinds()
