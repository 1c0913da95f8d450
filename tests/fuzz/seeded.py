"""A service with one object of every kind: to list, terminate and recover."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from queenright.server.access.roles import Role
from queenright.server.access.token_file import edit_tokens
from queenright.server.access.tokens import build_token
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.server.conftest import looping
from tests.waiting import until

AGENT = Path("examples/docs_checker")
WORKERS = ("researcher", "team/searcher", "idler")
"""The first is the one in the document's examples."""

INCARNATION = {"session_id": "researcher-session", "incarnation_id": "one"}


def bearer_header(words: str) -> dict[str, str]:
    """Return the header with a token."""
    return {"Authorization": f"Bearer {words}"}


def fuzzed_settings(folder: Path) -> Settings:
    """Return settings with the demo's clock, all files below one folder, and a required token."""
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": folder / "storage"},
        http={"port": 0},
        auth={"required": True, "tokens_file": folder / "tokens.json"},
        otlp={"port": 0},
        agents={"roots": (folder / "examples",), "storage": folder / "agents"},
        health_monitoring={
            "intervention": {
                "escalation": {"orchestrator": "none"},
                # No worker here stops on request; requests would wait for that.
                "termination": {"cleanup_timeout_seconds": 1},
            }
        },
    )


@contextlib.asynccontextmanager
async def run_seeded_service(folder: Path) -> AsyncIterator[tuple[RunningService, str]]:
    """
    Run such a service: workers, a ticket, a breaker, an approval, a nudge, a loaded agent.

    Yields it with the token of an admin.
    """
    now = time.time()
    made = {"id_": secrets.token_hex(4), "secret": secrets.token_urlsafe(32)}
    token, words = build_token("fuzz", Role.ADMIN, **made, now=now, expires_at=now + 86_400)
    edit_tokens(folder / "tokens.json", lambda tokens: tokens.with_token(token, now))
    shutil.copytree(AGENT, folder / "examples" / AGENT.name)
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("REQUESTS_PER_SECOND", "REQUEST_BURST", "FAILED_LOGINS_PER_MINUTE"):
            patch.setattr(f"queenright.server.access.access.{limit}", 10_000_000)
        async with serving(fuzzed_settings(folder)) as running:
            await _seed(running, folder, words)
            yield running, words


async def _seed(running: RunningService, folder: Path, words: str) -> None:
    service = running.service
    for number, agent in enumerate(WORKERS):
        times = 3 if agent == "idler" else 20
        await service.ingest(list(looping(service.clock() - number, agent=agent, times=times)))
    await until(lambda: any(t.analysis for t in service.tickets.open_tickets()), "a triaged ticket")
    breaker = service.breakers.get("tool_execution", "researcher", "search")
    for _ in range(3):
        breaker.admit().record_failure("search: it does not answer")
    client = httpx.AsyncClient(
        base_url=running.url, headers=bearer_header(words), trust_env=False, timeout=60
    )
    async with client as http:
        await http.get("/api/agents/researcher/instructions", params=INCARNATION)
        await http.post("/api/agents/researcher/nudge", json={"message": "Try other words."})
    await service.agents.load(folder / "examples" / AGENT.name)
    ticket = next(t for t in service.tickets.open_tickets() if t.agent_id == "researcher")
    worker = service.monitor.get("researcher")
    if worker is not None:
        await service.approvals.request(worker, ticket_id=ticket.ticket_id, reason="It loops.", by="queen")
