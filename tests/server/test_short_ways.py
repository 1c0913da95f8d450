"""What takes a short way is answered as the ordinary way answers it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from queenright.server.app import create_app
from queenright.server.build import build
from queenright.server.middleware.fast_routes import WAYS, FastRoutes
from queenright.server.settings import Settings

ASKED = [
    "/healthz",
    "/readyz",
    "/api/agents/worker/health",
    "/api/agents/worker/health?session_id=nobody",
    "/api/agents/nobody/health",
    "/api/agents/health/health",
    "/api/agents/{agent}/health",
    "/api/agents/a%2Fb/health",
    "/api/agents/worker/history",
    "/api/agents/worker/history?limit=0",
    "/api/agents/health",
    "/api/agents?limit=1",
    "/api/agents?limit=many",
    "/api/agents/",
    "/api/tickets",
    "/api/breakers",
    "/api/interventions?outcome=none",
    "/api/nothing",
]


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    service = await build(Settings(storage=tmp_path), clock=lambda: 1_760_000_000.0)
    await service.start()
    try:
        yield create_app(service, bound="127.0.0.1")
    finally:
        await service.stop()


async def _answers(app: FastAPI) -> list[tuple[int, bytes, list[tuple[str, str]]]]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        await http.post("/api/heartbeats", json={"agent_id": "worker"})
        await http.post("/api/heartbeats", json={"agent_id": "a/b"})
        found = [await http.get(path) for path in ASKED]
        found += [await http.post("/healthz"), await http.head("/api/agents/worker/health")]
    return [(one.status_code, one.content, sorted(one.headers.items())) for one in found]


async def test_a_short_way_leads_to_the_same_answer(app: FastAPI) -> None:
    short = await _answers(app)
    ways = app.router.middleware_stack
    assert isinstance(ways, FastRoutes)
    app.router.middleware_stack = app.router.app

    assert short == await _answers(app)
    assert [status for status, *_ in short[:4]] == [200, 200, 200, 404]


async def test_every_short_way_has_its_route(app: FastAPI) -> None:
    ways = app.router.middleware_stack
    assert isinstance(ways, FastRoutes)
    assert set(ways.known) == set(WAYS)
