"""The list of items that need a person now, most urgent first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings, looping
from tests.server.test_app import wait_for_ticket
from tests.server.test_hooks import AGENT_ID
from tests.server.test_permissions import (
    get_waiting_reason,
    make_answering_settings,
    open_telemetry_client,
    request_permission,
    wait_for_request,
)
from tests.server.test_shared_api import end_sessions, fail_agents
from tests.waiting import until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which only a person decides."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


async def list_items(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    response = await http.get("/api/attention")
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()["items"]
    assert response.json()["total"] == len(rows)
    return rows


async def report_waiting(running: RunningService, agent: str, question: str) -> None:
    worker_fields = {"agent_id": agent, "session_id": f"{agent}-1", "incarnation_id": "one"}
    reported_at = running.service.clock()
    await running.service.ingest(
        [
            AgentEvent(
                type=EventType.EXECUTION_STARTED,
                time=reported_at - 5,
                data={"start_records": True},
                **worker_fields,
            ),
            AgentEvent(
                type=EventType.WORKER_WAITING,
                time=reported_at,
                data={"reason": "user_input", "question": question},
                **worker_fields,
            ),
        ]
    )


async def test_quiet_fleet_needs_no_attention(running: RunningService, http: httpx.AsyncClient) -> None:
    """B95: after its turn, a worker waits for its user without a question."""
    await report_waiting(running, "done", "")

    assert await list_items(http) == []


async def test_question_names_its_worker_and_whether_the_console_can_answer_it(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B112: the item names the session and the incarnation."""
    await report_waiting(running, "writer", "Which title?")

    [item] = await list_items(http)

    assert (item["kind"], item["title"], item["item_id"]) == ("question", "Which title?", "writer/writer-1")
    assert (item["agent_id"], item["session_id"], item["incarnation_id"]) == ("writer", "writer-1", "one")
    assert (item["can_answer"], item["node_id"]) == (False, ""), "it runs outside the service"
    assert (item["deadline"], item["severity"]) == (None, None)


async def test_permission_request_is_listed_once_with_its_answers(tmp_path: Path) -> None:
    async with (
        serving(make_answering_settings(tmp_path)) as running,
        open_telemetry_client(running) as telemetry,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        request_task = await request_permission(telemetry)
        request = await wait_for_request(http)
        await report_waiting(running, "writer", "Which title?")

        first_item, second_item = await list_items(http)

        assert (first_item["kind"], first_item["item_id"]) == ("permission", request["request_id"])
        assert (first_item["agent_id"], first_item["tool"], first_item["title"]) == (
            AGENT_ID,
            "Bash",
            "Bash: rm -rf build",
        )
        assert (first_item["options"], first_item["deadline"]) == (["allow", "deny"], request["expires_at"])
        assert second_item["kind"] == "question", "the item that expires comes first"
        await http.post(f"/api/permissions/{request['request_id']}/answer", json={"decision": "allow"})
        await request_task
        await until(lambda: get_waiting_reason(running) == "", "the permission request has ended")
        assert [item["kind"] for item in await list_items(http)] == ["question"]


async def test_decisions_and_tickets_are_listed_until_acknowledged(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    service = running.service
    ticket_id = await wait_for_ticket(running)
    [ticket] = await list_items(http)
    await service.interventions.escalate("looper", "it gets nowhere", by="ann")

    [escalation] = await list_items(http)

    assert (ticket["kind"], ticket["ticket_id"], ticket["agents"]) == ("ticket", ticket_id, ["looper"])
    assert ticket["severity"] in ("high", "critical")
    assert (escalation["kind"], escalation["ticket_id"]) == ("escalation", ticket_id)
    assert escalation["options"] == ["more_time", "hand_off", "terminate"]
    assert escalation["text"].startswith("it gets nowhere\nNow: search was called 20 times")
    assert escalation["deadline"] > service.clock()
    await http.post(f"/api/escalations/{escalation['item_id']}/decision", json={"decision": "more_time"})
    assert [item["item_id"] for item in await list_items(http)] == [ticket_id]
    await http.post(f"/api/tickets/{ticket_id}/acknowledge")
    assert await list_items(http) == []


async def test_numbers_of_a_running_loop_are_current_in_every_view(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """The text of the ticket and the reason of the worker have the current numbers."""
    service = running.service
    ticket_id = await wait_for_ticket(running)
    cause = (await http.get(f"/api/tickets/{ticket_id}")).json()["cause"]
    await service.ingest(list(looping(service.clock(), times=45))[1 + 2 * 20 :])

    def is_ticket_updated() -> bool:
        ticket = service.tickets.get(ticket_id)
        return ticket is not None and ticket.cause != cause

    await until(is_ticket_updated, "the ticket has the current number of calls")
    [item] = await list_items(http)
    ticket = (await http.get(f"/api/tickets/{ticket_id}")).json()
    health = (await http.get("/api/agents/looper/health")).json()
    [row] = (await http.get("/api/agents", params={"search": "looper"})).json()["agents"]

    assert item["text"] == ticket["analysis"]
    assert health["reason"] == row["reason"]
    assert health["reason"] in [finding["evidence"] for finding in health["findings"]]


async def test_termination_request_of_the_queen_is_listed_with_its_deadline(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    ticket = running.service.tickets.get(ticket_id)
    assert ticket is not None
    await running.service.remediation.queen_actions.request_termination(ticket, "It loops.")
    [approval] = running.service.approvals.pending()

    [item] = await list_items(http)

    assert (item["kind"], item["item_id"]) == ("approval", approval.approval_id)
    assert (item["agent_id"], item["session_id"], item["incarnation_id"]) == (
        "looper",
        "looper-session",
        "one",
    )
    assert item["ticket_id"] == ticket_id
    assert item["text"].startswith("It loops.\nNow: search was called 20 times")
    assert (item["deadline"], item["options"]) == (approval.expires_at, ["approve", "deny"])


async def test_requested_decision_shows_the_current_numbers(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """A person decides about the current state, not about the state at the time of the request."""
    ticket_id = await wait_for_ticket(running)
    ticket = running.service.tickets.get(ticket_id)
    assert ticket is not None
    await running.service.remediation.queen_actions.request_termination(ticket, "20 calls of search.")
    [first_item] = await list_items(http)
    await running.service.ingest(list(looping(running.service.clock(), times=45))[1 + 2 * 20 :])

    [item] = await list_items(http)
    health = (await http.get("/api/agents/looper/health")).json()

    assert "45 times" in health["reason"]
    assert "45 times" not in first_item["text"]
    assert item["text"] == f"20 calls of search.\nNow: {health['reason']}"


async def test_forty_failing_workers_are_one_item(running: RunningService, http: httpx.AsyncClient) -> None:
    """B104: tickets that share a cause are listed as one incident."""
    names = [f"bee-{number:02}" for number in range(40)]
    await fail_agents(running, *names)

    [item] = await list_items(http)

    assert (item["kind"], item["workers"]) == ("incident", 40)
    assert item["title"] == "Model provider anthropic"
    assert (item["agent_id"], item["agents"], item["agents_more"]) == ("", names[:20], 20)
    assert item["text"].startswith("bee-00 has had no answer from its model provider")


async def test_incident_is_listed_until_all_its_tickets_are_acknowledged(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await fail_agents(running, *(f"bee-{number}" for number in range(3)))
    [item] = await list_items(http)
    incidents = (await http.get("/api/incidents")).json()["incidents"]
    tickets = next(
        incident["ticket_ids"] for incident in incidents if incident["incident_id"] == item["item_id"]
    )

    for ticket_id in tickets[1:]:
        await http.post(f"/api/tickets/{ticket_id}/acknowledge")
    [remaining_item] = await list_items(http)
    await http.post(f"/api/tickets/{tickets[0]}/acknowledge")

    assert remaining_item["item_id"] == item["item_id"]
    assert await list_items(http) == []


async def test_incident_of_ended_sessions_is_listed_until_acknowledged(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await fail_agents(running, "a", "b", "c")
    await end_sessions(running, "a", "b", "c")
    [item] = await list_items(http)
    assert (item["kind"], item["options"]) == ("incident", ["acknowledge"])
    assert item["text"] == "All workers of this incident have ended. Nobody has acknowledged it."

    ticket = (await http.get(f"/api/tickets/{item['ticket_id']}")).json()
    assert (ticket["status"], ticket["actions"]) == ("worker_gone", ["acknowledge"])
    response = await http.post(f"/api/tickets/{item['ticket_id']}/acknowledge", json={"by": "ada"})

    assert (response.status_code, response.json()["acknowledged_by"]) == (200, "ada")
    assert (response.json()["status"], response.json()["actions"]) == ("worker_gone", [])
    assert await list_items(http) == []
