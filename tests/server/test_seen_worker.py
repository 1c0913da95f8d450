"""Actions name the worker that the caller saw, and are refused if another worker has replaced it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings
from tests.server.test_app import wait_for_ticket
from tests.server.test_permissions import (
    make_answering_settings,
    open_telemetry_client,
    request_permission,
    wait_for_request,
)

SESSION = "looper-session"
TARGET = {"session_id": SESSION, "incarnation_id": "one"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which only a person decides."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


async def post(http: httpx.AsyncClient, path: str, **body: Any) -> httpx.Response:
    return await http.post(f"/api/{path}", json=body)


async def restart_worker(running: RunningService) -> None:
    """Restart the worker's process. Its session continues in another incarnation."""
    worker_fields = {"agent_id": "looper", "session_id": SESSION, "incarnation_id": "two"}
    restart_time = running.service.clock()
    start_data = {"framework": "test", "start_records": True}
    await running.service.ingest(
        [AgentEvent(type=EventType.EXECUTION_STARTED, time=restart_time, data=start_data, **worker_fields)]
    )


def check_refused(answer: httpx.Response, expected_text: str) -> None:
    assert answer.status_code == 409, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert expected_text in answer.json()["title"]


@pytest.mark.parametrize("action", ["nudge", "escalate", "terminate"])
async def test_action_on_a_restarted_worker_is_refused(
    running: RunningService, http: httpx.AsyncClient, action: str
) -> None:
    """B112: the action names a session and an incarnation, and affects no others."""
    await wait_for_ticket(running)
    await restart_worker(running)
    body = {} if action == "nudge" else {"reason": "it loops"}

    stale_response = await post(http, f"agents/looper/{action}", **TARGET, **body)
    current_response = await post(
        http, f"agents/looper/{action}", **TARGET | {"incarnation_id": "two"}, **body
    )

    check_refused(stale_response, "was restarted in the meantime (incarnation 'two', not 'one')")
    assert current_response.status_code == 202, current_response.text
    assert current_response.json()["incarnation_id"] == "two"


async def test_recovery_of_a_task_is_refused_if_its_worker_changed(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B112: the request names the session and the incarnation."""
    await wait_for_ticket(running)
    await restart_worker(running)

    stale_response = await post(http, "recoveries", task_id=SESSION, **TARGET)
    other_response = await post(http, "recoveries", task_id=SESSION, session_id="another")
    current_response = await post(http, "recoveries", task_id=SESSION, **TARGET | {"incarnation_id": "two"})

    check_refused(stale_response, "'looper' was restarted in the meantime")
    check_refused(other_response, "the action is for session 'looper-session'")
    assert "restarted" not in current_response.text


async def test_action_without_an_incarnation_is_not_refused(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B112: an empty incarnation means that the caller does not know it."""
    await wait_for_ticket(running)

    answer = await post(http, "agents/looper/nudge", session_id=SESSION, incarnation_id="")

    assert answer.status_code == 202, answer.text


@pytest.mark.parametrize(
    ("action", "body"),
    [("acknowledge", {}), ("unacknowledge", {}), ("dismiss", {"reason": "x"}), ("resolve", {"reason": "x"})],
)
async def test_ticket_action_on_a_replaced_worker_is_refused(
    running: RunningService, http: httpx.AsyncClient, action: str, body: dict[str, str]
) -> None:
    """B112: requests that close or silence a ticket name the worker that the caller saw."""
    ticket_id = await wait_for_ticket(running)
    ticket_before = (await http.get(f"/api/tickets/{ticket_id}")).json()
    await restart_worker(running)

    stale_response = await post(http, f"tickets/{ticket_id}/{action}", **TARGET, **body)
    other_response = await post(http, f"tickets/{ticket_id}/{action}", session_id="another", **body)

    check_refused(stale_response, "'looper' was restarted in the meantime")
    check_refused(other_response, "the action is for session 'looper-session' of 'looper', not 'another'")
    ticket_after = (await http.get(f"/api/tickets/{ticket_id}")).json()
    assert (ticket_after["status"], ticket_after["acknowledged_at"]) == (
        ticket_before["status"],
        ticket_before["acknowledged_at"],
    )
    silence_body = {"ticket_id": ticket_id, "seconds": 60, "comment": "known"}
    check_refused(await post(http, "silences", **TARGET, **silence_body), "was restarted in the meantime")


async def test_ticket_of_the_current_worker_can_be_acknowledged(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B112: the attention list names the running incarnation."""
    ticket_id = await wait_for_ticket(running)
    await restart_worker(running)
    [item] = [item for item in (await http.get("/api/attention")).json()["items"] if item["kind"] == "ticket"]

    target = {name: item[name] for name in TARGET}
    answer = await post(http, f"tickets/{ticket_id}/acknowledge", **target)

    assert target == {"session_id": SESSION, "incarnation_id": "two"}
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "acknowledged"


@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_approval_for_another_incarnation_is_refused(
    running: RunningService, http: httpx.AsyncClient, answer: str
) -> None:
    """B112: the decision names another incarnation."""
    ticket = running.service.tickets.get(await wait_for_ticket(running))
    assert ticket is not None
    await running.service.remediation.queen_actions.request_termination(ticket, "It loops.")
    [approval] = running.service.approvals.pending()

    refused_response = await post(
        http, f"approvals/{approval.approval_id}/{answer}", **TARGET | {"incarnation_id": "0"}
    )

    check_refused(refused_response, "was restarted in the meantime")
    assert running.service.approvals.pending() == [approval]
    response = await post(http, f"approvals/{approval.approval_id}/{answer}", **TARGET)
    assert response.status_code == 202, response.text


async def test_decision_for_another_session_is_refused(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B112: the decision names another session."""
    await wait_for_ticket(running)
    await running.service.interventions.escalate("looper", "it gets nowhere", by="ann")
    [question] = running.service.interventions.ledger.pending
    path = f"escalations/{question}/decision"

    refused_response = await post(http, path, decision="terminate", session_id="another")
    accepted_response = await post(http, path, decision="more_time", **TARGET)

    check_refused(refused_response, "not 'another'")
    assert accepted_response.status_code == 202, accepted_response.text


async def test_permission_of_another_incarnation_cannot_be_answered(tmp_path: Path) -> None:
    """B112: the answer names another incarnation."""
    async with (
        serving(make_answering_settings(tmp_path)) as running,
        open_telemetry_client(running) as telemetry,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        request_task = await request_permission(telemetry)
        request = await wait_for_request(http)
        path = f"permissions/{request['request_id']}/answer"

        refused_response = await post(http, path, decision="allow", incarnation_id="another")
        assert not request_task.done()
        target = {name: request[name] for name in TARGET}
        response = await post(http, path, decision="deny", **target)

        check_refused(refused_response, "was restarted in the meantime")
        assert response.status_code == 202, response.text
        assert (await request_task).json()["hookSpecificOutput"]["decision"]["behavior"] == "deny"
