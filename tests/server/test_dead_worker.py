"""B125: a person resolves the ticket of a killed worker over HTTP, on the command line or in the console."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.health.settings import HeartbeatSettings, StallSettings
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings
from tests.server.test_cli_acting import queenright
from tests.server.test_service_api import DRAFT
from tests.waiting import until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """
    Return settings with which a worker counts as dead after a short silence, and no automatic action is
    taken.
    """
    demo = demo_settings(tmp_path / "storage", orchestrator="none")
    health = demo.health_monitoring
    changed_health = health.model_copy(
        update={
            "heartbeat": HeartbeatSettings(interval_seconds=0.2, timeout_seconds=0.4),
            "stall": StallSettings(idle_seconds=0.4, llm_seconds=0.4, tool_seconds=0.4, unknown_seconds=0.4),
            "intervention": health.intervention.model_copy(update={"enabled": False}),
            "judge": health.judge.model_copy(update={"start_grace_seconds": 0.0}),
        }
    )
    return demo.model_copy(update={"health_monitoring": changed_health})


async def kill_worker(running: RunningService) -> EscalationTicket:
    """Report only the start of a worker, and return its ticket once it is notified."""
    service = running.service
    event = AgentEvent(
        type=EventType.EXECUTION_STARTED,
        time=service.clock(),
        agent_id="bee",
        session_id="s1",
        incarnation_id="i1",
        data={"start_records": True, "heartbeat_interval": 0.2},
    )
    await service.ingest([event])
    await until(
        lambda: any(
            open_ticket.status.value == "intervening" for open_ticket in service.tickets.open_tickets()
        ),
        "the ticket is notified",
    )
    [ticket] = service.tickets.open_tickets()
    return ticket


@pytest.mark.parametrize("method", ["resolve by hand", "dismiss by hand", "resolve over HTTP"])
async def test_ticket_of_a_killed_worker_can_be_closed(
    running: RunningService, http: httpx.AsyncClient, method: str
) -> None:
    ticket = await kill_worker(running)
    path = f"tickets/{ticket.ticket_id}"
    assert "resolve" in (await http.get(f"/api/{path}")).json()["actions"]

    match method.split():
        case [verb, "by", "hand"]:
            result = await queenright(
                running, "tickets", verb, ticket.ticket_id, "--reason", "killed it", "--by", "ada"
            )
            assert (result.code, result.out) == (0, "bee: resolved.\n"), result.err
        case [verb, *_]:
            response = await http.post(f"/api/{path}/{verb}", json={"reason": "killed it", "by": "ada"})
            assert response.status_code == 200, response.text

    closed_ticket = running.service.tickets.get(ticket.ticket_id)
    assert closed_ticket is not None
    assert closed_ticket.status.value == "resolved"
    assert "ada: " in closed_ticket.closed_reason
    worker = running.service.monitor.get("bee", "s1")
    assert worker is not None
    assert worker.vitals.status is WorkerStatus.UNKNOWN
    assert running.service.tickets.open_tickets() == []


@pytest.mark.parametrize("is_told", [True, False])
async def test_ticket_of_abandoned_work_can_be_resolved_but_not_dismissed(
    running: RunningService, is_told: bool
) -> None:
    """
    B125: the run has ended, but its work is not complete. The error names the command that closes the ticket.
    """
    service = running.service
    if not is_told:
        await service.judging.stop()
    worker_fields = {"agent_id": "bee", "session_id": "s1", "incarnation_id": "i1"}
    events_data: dict[EventType, dict[str, Any]] = {
        EventType.EXECUTION_STARTED: {},
        EventType.EXECUTION_FAILED: {"error_type": "OSError"},
        EventType.RECOVERY_FAILED: {
            "recovery_id": "r1",
            "exhausted": True,
            "reason": "the third attempt failed",
        },
    }
    for kind, data in events_data.items():
        await service.ingest([AgentEvent(type=kind, time=service.clock(), data=data, **worker_fields)])
    await service.bus.drain()
    if is_told:
        await until(
            lambda: any(ticket.notified_at for ticket in service.tickets.open_tickets()),
            "the ticket is notified",
        )
        [ticket] = service.tickets.open_tickets()
    else:
        worker = service.monitor.get("bee")
        assert worker is not None
        ticket = (await service.tickets.raise_ticket(worker, DRAFT)).ticket

    refused_result = await queenright(running, "tickets", "dismiss", ticket.ticket_id, "--reason", "known")
    assert (refused_result.code, refused_result.out) == (1, "")
    command = f'queenright tickets resolve {ticket.ticket_id} --reason "..."'
    assert command in refused_result.err
    resolve_arguments = ["resolve", ticket.ticket_id, "--reason", "by hand", "--by", "ada"]
    result = await queenright(running, "tickets", *resolve_arguments)
    assert (result.code, result.out) == (0, "bee: resolved.\n")
    closed_ticket = await service.tickets.find(ticket.ticket_id)
    assert closed_ticket is not None
    assert (closed_ticket.status, closed_ticket.closed_reason) == (TicketStatus.RESOLVED, "ada: by hand")
