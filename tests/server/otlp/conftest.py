from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client import CollectorRegistry

from queenright.runtime.events import AgentEvent
from queenright.server.otlp import OtlpReceiver


@dataclass
class RunningReceiver:
    """A receiver on a real uvicorn server, and the events that it passed on."""

    url: str = ""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    events: list[AgentEvent] = field(default_factory=list)
    failure: Exception | None = None
    app: OtlpReceiver = field(init=False)

    async def ingest(self, events: list[AgentEvent]) -> None:
        if self.failure is not None:
            raise self.failure
        self.events += events

    def list_types(self) -> list[str]:
        return [event.type.value for event in self.events]

    def count_spans(self, outcome: str) -> float:
        return self.registry.get_sample_value("queenright_ingest_spans_total", {"outcome": outcome}) or 0.0


async def serve(app: Any, listener: socket.socket) -> tuple[uvicorn.Server, asyncio.Task[None]]:
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", ws="none")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    async with asyncio.timeout(60):
        while not server.started:  # noqa: ASYNC110  # uvicorn has no event for this
            await asyncio.sleep(0.005)
    return server, task


@pytest.fixture
async def otlp() -> AsyncIterator[RunningReceiver]:
    """Yield a receiver on a free port with small limits: 64 KiB as sent, 256 KiB after decompression."""
    receiver = RunningReceiver()
    receiver.app = OtlpReceiver(
        receiver.ingest, registry=receiver.registry, max_body=65_536, max_inflated=262_144, body_timeout=0.5
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server, task = await serve(receiver.app, listener)
        yield receiver
        server.should_exit = True
        await task


@pytest.fixture
async def http(otlp: RunningReceiver) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=otlp.url, verify=False) as client:
        yield client
