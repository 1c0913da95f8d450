"""Approvals in the notification, in the console, over HTTP, and on the command line."""

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
from queenright.server.views.api_models import status
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


async def suggested_action(service: Service) -> str:
    """Return the suggested action of the current notification."""
    [notifications] = [
        notification for notification in await service.store.read(read_active) if notification.ends_at is None
    ]
    return notifications.annotations["suggested_action"]


async def answer_termination(running: RunningService) -> None:
    """Act as the worker: fetch the instruction and confirm that it stopped."""
    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False, timeout=60) as http:
        instructions = await http.get("/api/agents/looper/instructions", params=WORKER | {"wait": 30})
        [instruction] = instructions.json()["instructions"]
        path = f"/api/agents/looper/instructions/{instruction['instruction_id']}/answer"
        await http.post(path, json=WORKER | {"outcome": "done", "checkpoint_id": "cp-7"})


async def test_notification_has_the_approve_command_until_answered(running: RunningService) -> None:
    approval = await request_termination(running)

    assert f"queenright approvals approve {approval.approval_id}" in await suggested_action(running.service)
    await running.service.approvals.deny(approval.approval_id, by="ada")

    assert "approvals approve" not in await suggested_action(running.service)


async def test_approval_request_renotifies_with_its_deadline_in_the_title(running: RunningService) -> None:
    """Receivers do not show that a sent message changed. So another alert is sent, once."""
    service = running.service
    await wait_for_ticket(running)
    [before] = await service.store.read(read_active)
    approval = await request_termination(running)
    await until(lambda: service.tickets.open_tickets()[0].requests == 1, "another alert is sent")

    [now] = [one for one in await service.store.read(read_active) if one.ends_at is None]
    assert now.labels != before.labels, "Alertmanager would send no notification for equal labels"
    then = wording.clock_time(approval.expires_at)
    assert then in now.annotations["summary"]

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
    [now] = [one for one in await service.store.read(read_active) if one.ends_at is None]
    assert "Approve or deny" not in now.annotations["summary"]


async def test_pending_request_is_in_the_first_notification(running: RunningService) -> None:
    service = running.service
    ticket_id = await wait_for_ticket(running)
    ticket = service.tickets.get(ticket_id)
    assert ticket is not None
    worker = service.monitor.get("looper")
    assert worker is not None
    await service.approvals.request(worker, ticket_id=ticket_id, reason="It loops.", by="queen")

    await service.tickets.intervene(ticket_id, "It loops, and that costs.", "high")

    assert "It loops." in await suggested_action(service)


async def test_status_lists_pending_approvals_and_feed_lists_answers(running: RunningService) -> None:
    approval = await request_termination(running)

    [row] = status(running.service).acting.approvals

    assert row.approval_id == approval.approval_id
    assert any("termination requested by" in line.text for line in status(running.service).feed)


async def test_ticket_on_the_command_line_has_the_command_for_its_pending_approval(
    running: RunningService,
) -> None:
    approval = await request_termination(running)

    shown = await queenright(running, "tickets", "show", approval.ticket_id)
    await running.service.approvals.deny(approval.approval_id, by="ada")
    shown_later = await queenright(running, "tickets", "show", approval.ticket_id)

    command = f"queenright approvals approve {approval.approval_id}"
    assert (command in shown.out, command in shown_later.out) == (True, False)


async def test_termination_approved_by_short_id_is_signed(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    approval = await request_termination(running)
    stopping = asyncio.create_task(answer_termination(running))

    path = f"/api/approvals/{approval.approval_id}"
    response = await http.post(f"{path[:-4]}/approve", json={"by": "ada", "reason": "seen it"}, timeout=60)
    repeated = await http.post(f"{path}/approve", json={"by": "bob"})

    await stopping
    assert response.status_code == 202
    assert (response.json()["outcome"], response.json()["decided_by"]) == ("done", "ada")
    assert repeated.status_code == 409
    assert "approved by ada" in repeated.json()["title"]
    [ended] = await find_event(running, EventType.AGENT_TERMINATED)
    assert ended.data["by"] == "ada"
    assert ended.data["signature"]


async def find_event(running: RunningService, type_: EventType) -> list[AgentEvent]:
    return [event for event in running.service.recent if event.type is type_]


async def test_list_is_newest_first_in_pages(running: RunningService, http: httpx.AsyncClient) -> None:
    first = await request_termination(running)
    await running.service.approvals.deny(first.approval_id, by="ada")

    everything = (await http.get("/api/approvals")).json()["approvals"]
    waiting = (await http.get("/api/approvals", params={"open": True})).json()["approvals"]

    assert [(page["approval_id"], page["status"]) for page in everything] == [(first.approval_id, "denied")]
    assert waiting == []


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
async def test_unanswerable_request_is_an_error_with_a_reason(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], code: int
) -> None:
    response = await http.post(f"/api/approvals/{path}", json=body)

    assert response.status_code == code
    assert response.headers["content-type"] == "application/problem+json"


async def test_decided_request_is_found_by_the_beginning_of_its_id(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    approval_id = (await request_termination(running)).approval_id
    await running.service.approvals.deny(approval_id, by="ada", reason="let it finish")

    late = await http.post(f"/api/approvals/{approval_id[:8]}/approve", json={"by": "bob"})
    too_short = await http.post(f"/api/approvals/{approval_id[:7]}/approve", json={"by": "bob"})

    assert (late.status_code, too_short.status_code) == (409, 409)
    assert late.json()["title"] == f"approval {approval_id} is denied by ada: let it finish"
    assert "give at least 8 characters" in too_short.json()["title"]


async def test_command_line_lists_approves_and_denies(running: RunningService) -> None:
    empty = await queenright(running, "approvals")
    approval = await request_termination(running)
    listed = await queenright(running, "approvals")
    plain = await queenright(running, "approvals", "--json")
    denied = await queenright(running, "approvals", "deny", approval.approval_id, "--by", "ada")
    late = await queenright(running, "approvals", "approve", approval.approval_id, "--by", "bob")
    over = await queenright(running, "approvals", "list", "--all")

    assert empty.out == "No pending approvals.\n"
    assert listed.out.split()[0] == approval.approval_id
    assert "min left" in listed.out
    assert "looper" in listed.out
    assert [one["asked_by"] for one in plain.json] == ["queen"]
    assert (denied.code, "looper: denied" in denied.out) == (0, True)
    assert (late.code, late.out) == (1, "")
    assert "denied by ada" in late.err
    assert "denied" in over.out


async def test_approval_on_the_command_line_terminates(running: RunningService) -> None:
    approval = await request_termination(running)
    worker = asyncio.create_task(answer_termination(running))

    result = await queenright(running, "approvals", "approve", approval.approval_id, "--reason", "seen it")

    await worker
    assert (result.code, result.out) == (0, "looper: terminated.\n")


async def test_ticket_that_closes_takes_the_request_along(running: RunningService) -> None:
    service = running.service
    await request_termination(running)
    closed = AgentEvent(
        type=EventType.EXECUTION_COMPLETED, time=service.clock(), agent_id="looper", data={}, **WORKER
    )

    await service.ingest([closed])
    async with asyncio.timeout(60):
        while service.approvals.pending():  # noqa: ASYNC110 - there is nothing else to wait for
            await asyncio.sleep(0.02)

    [approval] = await service.approvals.history(limit=10)
    assert approval.status.value == "void"
