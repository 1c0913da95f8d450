"""Approvals in notifications, in the console, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.alerting.notification_table import read_active
from queenright.health.interventions.approval import Approval
from queenright.judge import wording
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.notifications.operator_requests import OperatorRequests
from queenright.server.service import Service
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from queenright.server.views.api_models import build_status
from tests.server.conftest import demo_settings
from tests.server.test_app import wait_for_ticket
from tests.server.test_cli_acting import WORKER, queenright
from tests.waiting import until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which only the test decides."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


async def request_termination(running: RunningService, reason: str = "It loops.") -> Approval:
    """
    Let the queen request the termination of a worker that has a notified ticket and fetches instructions.
    Return the approval.
    """
    service = running.service
    ticket_id = await wait_for_ticket(running)
    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False, timeout=60) as http:
        await http.get("/api/agents/looper/instructions", params=WORKER)
    ticket = service.tickets.get(ticket_id)
    assert ticket is not None
    await service.remediation.queen_actions.request_termination(ticket, reason)
    [approval] = service.approvals.pending()
    return approval


async def read_suggested_action(service: Service) -> str:
    """Return the suggested action of the current notification."""
    [notifications] = [
        notification for notification in await service.store.read(read_active) if notification.ends_at is None
    ]
    return notifications.annotations["suggested_action"]


async def answer_termination(running: RunningService) -> None:
    """Act as the worker: fetch the instruction, and confirm that the worker has stopped."""
    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False, timeout=60) as http:
        instructions = await http.get("/api/agents/looper/instructions", params=WORKER | {"wait": 30})
        [instruction] = instructions.json()["instructions"]
        path = f"/api/agents/looper/instructions/{instruction['instruction_id']}/answer"
        await http.post(path, json=WORKER | {"outcome": "done", "checkpoint_id": "cp-7"})


async def test_notification_has_the_approve_command_until_the_request_is_answered(
    running: RunningService,
) -> None:
    approval = await request_termination(running)

    assert f"queenright approvals approve {approval.approval_id}" in await read_suggested_action(
        running.service
    )
    await running.service.approvals.deny(approval.approval_id, by="ada")

    assert "approvals approve" not in await read_suggested_action(running.service)


async def test_approval_request_sends_a_notification_with_its_deadline_in_the_title(
    running: RunningService,
) -> None:
    """Receivers do not show changes of a sent message, so one more alert is sent."""
    service = running.service
    await wait_for_ticket(running)
    [first_notification] = await service.store.read(read_active)
    approval = await request_termination(running)
    await until(lambda: service.tickets.open_tickets()[0].requests == 1, "one more alert is sent")

    [current_notification] = [
        notification for notification in await service.store.read(read_active) if notification.ends_at is None
    ]
    assert current_notification.labels != first_notification.labels, (
        "Alertmanager would send no notification for equal labels"
    )
    deadline_text = wording.clock_time(approval.expires_at)
    assert deadline_text in current_notification.annotations["summary"]

    requests = OperatorRequests(
        store=service.store,
        tickets=service.tickets,
        monitor=service.monitor,
        ledger=service.interventions.ledger,
        settings=service.settings.health_monitoring.intervention,
    )
    await requests.load()
    assert service.tickets.open_tickets()[0].requests == 1
    await service.approvals.deny(approval.approval_id, by="ada")
    [current_notification] = [
        notification for notification in await service.store.read(read_active) if notification.ends_at is None
    ]
    assert "Approve or deny" not in current_notification.annotations["summary"]


async def test_request_before_the_first_notification_is_part_of_it(running: RunningService) -> None:
    service = running.service
    ticket_id = await wait_for_ticket(running)
    ticket = service.tickets.get(ticket_id)
    assert ticket is not None
    worker = service.monitor.get("looper")
    assert worker is not None
    await service.approvals.request(worker, ticket_id=ticket_id, reason="It loops.", by="queen")

    await service.tickets.intervene(ticket_id, "It loops, and that costs.", "high")

    assert "It loops." in await read_suggested_action(service)


async def test_status_lists_pending_approvals_and_feed_lists_answers(running: RunningService) -> None:
    approval = await request_termination(running)

    [row] = build_status(running.service).acting.approvals

    assert row.approval_id == approval.approval_id
    assert any("termination requested by" in line.text for line in build_status(running.service).feed)


async def test_ticket_command_shows_the_approve_command_of_a_pending_approval(
    running: RunningService,
) -> None:
    approval = await request_termination(running)

    output_before = await queenright(running, "tickets", "show", approval.ticket_id)
    await running.service.approvals.deny(approval.approval_id, by="ada")
    output_after = await queenright(running, "tickets", "show", approval.ticket_id)

    command = f"queenright approvals approve {approval.approval_id}"
    assert (command in output_before.out, command in output_after.out) == (True, False)


async def test_termination_approved_by_an_abbreviated_id_is_signed(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    approval = await request_termination(running)
    worker_task = asyncio.create_task(answer_termination(running))

    path = f"/api/approvals/{approval.approval_id}"
    response = await http.post(f"{path[:-4]}/approve", json={"by": "ada", "reason": "seen it"}, timeout=60)
    repeated_response = await http.post(f"{path}/approve", json={"by": "bob"})

    await worker_task
    assert response.status_code == 202
    assert (response.json()["outcome"], response.json()["decided_by"]) == ("done", "ada")
    assert repeated_response.status_code == 409
    assert "approved by ada" in repeated_response.json()["title"]
    [termination_event] = await find_events(running, EventType.AGENT_TERMINATED)
    assert termination_event.data["by"] == "ada"
    assert termination_event.data["signature"]


async def find_events(running: RunningService, type_: EventType) -> list[AgentEvent]:
    return [event for event in running.service.recent if event.type is type_]


async def test_approvals_are_listed_newest_first_in_pages(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    first_approval = await request_termination(running)
    await running.service.approvals.deny(first_approval.approval_id, by="ada")

    all_approvals = (await http.get("/api/approvals")).json()["approvals"]
    open_approvals = (await http.get("/api/approvals", params={"open": True})).json()["approvals"]

    assert [(page["approval_id"], page["status"]) for page in all_approvals] == [
        (first_approval.approval_id, "denied")
    ]
    assert open_approvals == []


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("none/approve", {}, 404),
        ("none/deny", {}, 404),
        ("none/approve", {"by": ""}, 422),
        ("none/approve", {"reason": "x" * 2001}, 422),
        ("none/approve", {"decision": "yes"}, 422),
    ],
)
async def test_request_that_cannot_be_answered_is_an_error_with_a_reason(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], code: int
) -> None:
    response = await http.post(f"/api/approvals/{path}", json=body)

    assert response.status_code == code
    assert response.headers["content-type"] == "application/problem+json"


async def test_decided_request_is_found_by_an_id_prefix(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    approval_id = (await request_termination(running)).approval_id
    await running.service.approvals.deny(approval_id, by="ada", reason="let it finish")

    late_response = await http.post(f"/api/approvals/{approval_id[:8]}/approve", json={"by": "bob"})
    too_short_response = await http.post(f"/api/approvals/{approval_id[:7]}/approve", json={"by": "bob"})

    assert (late_response.status_code, too_short_response.status_code) == (409, 409)
    assert late_response.json()["title"] == f"approval {approval_id} is denied by ada: let it finish"
    assert "give at least 8 characters" in too_short_response.json()["title"]


async def test_command_line_lists_approves_and_denies(running: RunningService) -> None:
    empty_list = await queenright(running, "approvals")
    approval = await request_termination(running)
    list_result = await queenright(running, "approvals")
    json_list = await queenright(running, "approvals", "--json")
    deny_result = await queenright(running, "approvals", "deny", approval.approval_id, "--by", "ada")
    late_result = await queenright(running, "approvals", "approve", approval.approval_id, "--by", "bob")
    decided_list = await queenright(running, "approvals", "list", "--all")

    assert empty_list.out == "No pending approvals.\n"
    assert list_result.out.split()[0] == approval.approval_id
    assert "min left" in list_result.out
    assert "looper" in list_result.out
    assert [row["asked_by"] for row in json_list.json] == ["queen"]
    assert (deny_result.code, "looper: denied" in deny_result.out) == (0, True)
    assert (late_result.code, late_result.out) == (1, "")
    assert "denied by ada" in late_result.err
    assert "denied" in decided_list.out


async def test_approval_on_the_command_line_terminates_the_worker(running: RunningService) -> None:
    approval = await request_termination(running)
    worker = asyncio.create_task(answer_termination(running))

    result = await queenright(running, "approvals", "approve", approval.approval_id, "--reason", "seen it")

    await worker
    assert (result.code, result.out) == (0, "looper: terminated.\n")


async def test_request_expires_when_its_ticket_closes(running: RunningService) -> None:
    service = running.service
    await request_termination(running)
    end_event = AgentEvent(
        type=EventType.EXECUTION_COMPLETED, time=service.clock(), agent_id="looper", data={}, **WORKER
    )

    await service.ingest([end_event])
    async with asyncio.timeout(60):
        while service.approvals.pending():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.02)

    [approval] = await service.approvals.history(limit=10)
    assert approval.status.value == "void"
