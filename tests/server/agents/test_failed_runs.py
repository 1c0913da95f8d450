"""Consecutive failed runs of a loaded agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.server.agents.parts import run_agent_service, write_files
from tests.server.agents.test_input_refused import AGENT, EAGER
from tests.waiting import until

FUNCTIONS = """
def file(folder: str):
    if folder != "docs":
        raise OSError("the disk is full")
"""


async def test_fourth_consecutive_failed_run_opens_one_ticket_and_a_success_closes_it(tmp_path: Path) -> None:
    """No run is repeated automatically, each recovery has its command, and three failed runs send no page."""
    write_files(tmp_path / "agents" / "clerk", agent=AGENT, functions=FUNCTIONS)
    async with run_agent_service(tmp_path, agents={"load": ["clerk"]}, health_monitoring=EAGER) as home:
        tickets = home.service.tickets

        async def run_clerk(folder: str) -> None:
            body = {"input_data": {"folder": folder}}
            response = await home.request("POST", "/api/agents/clerk/trigger", json=body, status=202)
            await home.wait_for_end("clerk", response["execution_id"])
            await home.service.bus.drain()

        for _ in range(3):
            await run_clerk("nowhere")
        assert tickets.open_tickets() == []
        for _ in range(3):
            await run_clerk("nowhere")
        await until(lambda: bool(tickets.open_tickets()), "the ticket is open")
        [ticket] = tickets.open_tickets()
        recoveries = await home.service.health.recoveries(10)
        async with asyncio.timeout(60):
            while len(recoveries) < 6 or any(row.ended_at is None for row in recoveries):
                await asyncio.sleep(0.05)
                recoveries = await home.service.health.recoveries(10)
        await run_clerk("docs")
        await until(
            lambda: all(ticket.condition_cleared_at is not None for ticket in tickets.open_tickets()),
            "the condition of the ticket has cleared",
        )

    assert (ticket.kind, ticket.severity) == ("runs_failed", "high")
    assert {(row.state.value, row.exhausted) for row in recoveries} == {("dropped", False)}
    assert all("--from-start" in row.outcome for row in recoveries)
