"""The service on real sockets, with the demo's clock and without other programs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests import warm


@pytest.fixture(scope="session", autouse=True)
def commands() -> None:
    """Start the process that forks commands, so that the first command does not wait for its imports."""
    warm.start()


HOUR = 3600.0


def demo_settings(storage: Path, *, wait_seconds: float = 0, **escalation: str) -> Settings:
    """
    Return the demo's settings with free ports. ``escalation`` selects who decides, by default the queen.

    A permission request waits ``wait_seconds`` for an answer.

    The stall limit is so high that it is never reached: on a busy machine, more than the demo's 20 s may pass
    between two lines of a test.
    """
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage},
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring={
            "intervention": {"escalation": escalation, "permission": {"wait_seconds": wait_seconds}},
            "stall": dict.fromkeys(("idle_seconds", "llm_seconds", "tool_seconds", "unknown_seconds"), HOUR),
        },
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return demo_settings(tmp_path / "storage")


@pytest.fixture
async def running(settings: Settings) -> AsyncIterator[RunningService]:
    async with serving(settings) as running_service:
        yield running_service


@pytest.fixture(scope="session")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Yield a service in its own thread. The tests of a process that change nothing share it."""
    settings = demo_settings(tmp_path_factory.mktemp("idle") / "storage", orchestrator="none")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(settings)) as running_service,
    ):
        yield running_service


@pytest.fixture
async def idle_http(idle: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=idle.url, verify=False, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture
async def http(running: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    # A busy machine may take longer to respond than httpx waits by default.
    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False, timeout=60) as client:
        yield client


def looping(
    now: float, *, agent: str = "looper", times: int = 20, ended: bool = False
) -> Iterator[AgentEvent]:
    """Return the events of a run that began a minute ago and has repeated one call since, once per second."""

    def make_event(kind: EventType, time: float, **data: object) -> AgentEvent:
        return AgentEvent(
            type=kind,
            time=time,
            agent_id=agent,
            session_id=f"{agent}-session",
            incarnation_id="one",
            node_id="search",
            data=data,
        )

    first_call = now - 50
    yield make_event(EventType.EXECUTION_STARTED, first_call, framework="test", start_records=True)
    for index in range(times):
        time = first_call + 1 + index
        yield make_event(
            EventType.TOOL_CALL_COMPLETED,
            time,
            tool="search",
            turn=str(index),
            args_hash="a" * 16,
            result_hash="b" * 16,
            outcome="ok",
        )
        yield make_event(EventType.STEP_COMPLETED, time, index=index, verdict="RETRY")
    if ended:
        yield make_event(EventType.EXECUTION_COMPLETED, now)
