"""B125 over HTTP, by hand and on its page: the ticket of a killed worker is settled by a person."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from queenright.health.settings import Heartbeat, Stall
from queenright.health.tickets import EscalationTicket
from queenright.health.vitals import SessionStatus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.settings import Settings
from queenright.server.up import Running
from tests.server.conftest import demo_settings
from tests.server.test_cli_acting import queenright
from tests.waiting import until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A worker is dead as soon as it is silent for a moment; nothing is done to it by itself."""
    known = demo_settings(tmp_path / "storage", orchestrator="none")
    health = known.health_monitoring
    changed = health.model_copy(
        update={
            "heartbeat": Heartbeat(interval_seconds=0.2, timeout_seconds=0.4),
            "stall": Stall(idle_seconds=0.4, llm_seconds=0.4, tool_seconds=0.4, unknown_seconds=0.4),
            "intervention": health.intervention.model_copy(update={"enabled": False}),
            "judge": health.judge.model_copy(update={"start_grace_seconds": 0.0}),
        }
    )
    return known.model_copy(update={"health_monitoring": changed})


async def killed(running: Running) -> EscalationTicket:
    """A worker says that it has begun, and no more; return the ticket that people were told of."""
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
        lambda: any(t.status.value == "intervening" for t in service.tickets.open_tickets()),
        "people are told",
    )
    [ticket] = service.tickets.open_tickets()
    return ticket


@pytest.mark.parametrize(
    "way", ["resolve by hand", "dismiss by hand", "resolve over HTTP", "resolve on its page"]
)
async def test_ticket_of_a_killed_worker_is_settled(
    running: Running, http: httpx.AsyncClient, way: str
) -> None:
    ticket = await killed(running)
    where = f"tickets/{ticket.ticket_id}"
    page = (await http.get(f"/{where}")).text
    assert f"/{where}/resolve" in page, "the page offers it"

    match way.split():
        case [verb, "by", "hand"]:
            done = await queenright(
                running, "tickets", verb, ticket.ticket_id, "--reason", "killed it", "--by", "ada"
            )
            assert done.code == 0, done.err
        case [verb, "over", _]:
            answer = await http.post(f"/api/{where}/{verb}", json={"reason": "killed it", "by": "ada"})
            assert answer.status_code == 200, answer.text
        case _:
            question = (await http.get(f"/{where}/resolve")).text
            assert "Its worker is gone" in question

    if way != "resolve on its page":
        closed = running.service.tickets.get(ticket.ticket_id)
        assert closed is not None
        assert closed.status.value == "resolved"
        assert "ada: " in closed.closed_reason
        worker = running.service.monitor.get("bee", "s1")
        assert worker is not None
        assert worker.vitals.status is SessionStatus.UNKNOWN
        assert running.service.tickets.open_tickets() == []
