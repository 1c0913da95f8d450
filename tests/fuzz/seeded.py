"""A service with one object of every kind, so that requests find something to list and act on."""

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
"""The first agent is that of the document's examples."""

INCARNATION = {"session_id": "researcher-session", "incarnation_id": "one"}


def bearer_header(token_text: str) -> dict[str, str]:
    """Return the header that sends a token."""
    return {"Authorization": f"Bearer {token_text}"}


def make_settings(folder: Path) -> Settings:
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
                # No worker stops on request, and requests wait for this time.
                "termination": {"cleanup_timeout_seconds": 1},
            }
        },
    )


@contextlib.asynccontextmanager
async def run_seeded_service(folder: Path) -> AsyncIterator[tuple[RunningService, str]]:
    """
    Yield a service and the token of an admin.

    The service has workers, a ticket, a breaker, an approval, a nudge and a loaded agent.
    """
    now = time.time()
    random_parts = {"id_": secrets.token_hex(4), "secret": secrets.token_urlsafe(32)}
    token, token_text = build_token("fuzz", Role.ADMIN, **random_parts, now=now, expires_at=now + 86_400)
    edit_tokens(folder / "tokens.json", lambda tokens: tokens.with_token(token, now))
    shutil.copytree(AGENT, folder / "examples" / AGENT.name)
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("REQUESTS_PER_SECOND", "REQUEST_BURST", "FAILED_LOGINS_PER_MINUTE"):
            patch.setattr(f"queenright.server.access.access.{limit}", 10_000_000)
        async with serving(make_settings(folder)) as running_service:
            await _seed(running_service, folder, token_text)
            yield running_service, token_text


async def _seed(running_service: RunningService, folder: Path, token_text: str) -> None:
    service = running_service.service
    for number, agent in enumerate(WORKERS):
        times = 3 if agent == "idler" else 20
        await service.ingest(list(looping(service.clock() - number, agent=agent, times=times)))
    await until(lambda: any(t.analysis for t in service.tickets.open_tickets()), "a triaged ticket")
    breaker = service.breakers.get("tool_execution", "researcher", "search")
    for _ in range(3):
        breaker.admit().record_failure("search: it does not answer")
    client = httpx.AsyncClient(
        base_url=running_service.url, headers=bearer_header(token_text), trust_env=False, timeout=60
    )
    async with client as http:
        await http.get("/api/agents/researcher/instructions", params=INCARNATION)
        await http.post("/api/agents/researcher/nudge", json={"message": "Try other words."})
    await service.agents.load(folder / "examples" / AGENT.name)
    ticket = next(t for t in service.tickets.open_tickets() if t.agent_id == "researcher")
    worker = service.monitor.get("researcher")
    if worker is not None:
        await service.approvals.request(worker, ticket_id=ticket.ticket_id, reason="It loops.", by="queen")
