"""A service on real sockets for each test file, with one worker in trouble and example agents to load."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from queenright.client import AsyncQueenright, Queenright
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.server.conftest import looping
from tests.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"


def make_settings(storage: Path, *, port: int = 0) -> Settings:
    """Return the demo's settings with the example agents to load; only the test decides escalations."""
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage},
        http={"port": port},
        otlp={"port": 0},
        agents={"roots": [EXAMPLES], "storage": storage / "agents"},
        health_monitoring={"intervention": {"escalation": {"orchestrator": "none"}}},
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningService]:
    """Yield a service with a triaged ticket about the worker `looper`."""
    async with serving(make_settings(tmp_path_factory.mktemp("client"))) as service_run:
        service = service_run.service
        await service.ingest(list(looping(service.clock())))
        await until(lambda: any(t.analysis for t in service.tickets.open_tickets()), "a triaged ticket")
        yield service_run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def qr(running_service: RunningService) -> AsyncIterator[AsyncQueenright]:
    """Yield the asynchronous client of the service."""
    async with AsyncQueenright(running_service.url) as client:
        yield client


@pytest.fixture(scope="module")
def sync_client(running_service: RunningService) -> Iterator[Queenright]:
    """Yield the synchronous client of the service; call it in a thread."""
    with Queenright(running_service.url) as client:
        yield client
