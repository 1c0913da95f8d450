"""A service with something of everything in it: to be found, stopped and brought back."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from queenright.server.settings import Settings, load_settings
from queenright.server.up import DEMO_DEFAULTS, Running, serving
from tests.server.conftest import looping
from tests.waiting import until

AGENT = Path("examples/docs_checker")
WORKERS = ("looper", "team/searcher", "idler")
LIFE = {"session_id": "looper-session", "incarnation_id": "one"}


def fuzzed_settings(folder: Path) -> Settings:
    """The demo's clock, everything below one folder, and no limit on who asks so much."""
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": folder / "storage"},
        http={"port": 0, "limits": {"requests_per_second": 1e6, "burst": 10_000_000}},
        otlp={"port": 0},
        agents={"roots": (folder / "examples",), "storage": folder / "agents"},
        health_monitoring={"intervention": {"escalation": {"orchestrator": "none"}}},
    )


@contextlib.asynccontextmanager
async def seeded(folder: Path) -> AsyncIterator[Running]:
    """Run such a service: workers, a ticket, a breaker, an approval, a nudge, an agent that is loaded."""
    shutil.copytree(AGENT, folder / "examples" / AGENT.name)
    async with serving(fuzzed_settings(folder)) as running:
        await _seed(running, folder)
        yield running


async def _seed(running: Running, folder: Path) -> None:
    service = running.service
    for number, agent in enumerate(WORKERS):
        times = 3 if agent == "idler" else 20
        await service.ingest(list(looping(service.clock() - number, agent=agent, times=times)))
    await until(lambda: any(t.analysis for t in service.tickets.open_tickets()), "a ticket that was triaged")
    breaker = service.breakers.get("tool_execution", "looper", "search")
    for _ in range(3):
        breaker.admit().failed("search: it does not answer")
    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False, timeout=60) as http:
        await http.get("/api/agents/looper/instructions", params=LIFE)
        await http.post("/api/agents/looper/nudge", json={"message": "Try other words."})
    await service.agents.load(folder / "examples" / AGENT.name)
    ticket = next(t for t in service.tickets.open_tickets() if t.worker_agent_id == "looper")
    worker = service.monitor.get("looper")
    if worker is not None:
        await service.approvals.request(worker, ticket_id=ticket.ticket_id, reason="It loops.", by="queen")
