"""The whole product on free ports: the service, the real Prometheus and Alertmanager, agents in processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from queenright.alerting.recorder import Recorder
from queenright.server.ops.programs import find_program
from queenright.server.ops.sockets import listen, make_socket_url, serve_app
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.up import up
from queenright.server.up_options import DEMO_DEFAULTS, UpOptions
from queenright.server.up_programs import start_alertmanager
from tests.isolation import environment

AGENTS = Path(__file__).parent / "agents"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with free ports and the demo's clock, in which minutes take seconds."""
    return load_settings(
        defaults=DEMO_DEFAULTS, storage=tmp_path / "storage", http={"port": 0}, otlp={"port": 0}
    )


@contextlib.asynccontextmanager
async def up_without_demo(settings: Settings) -> AsyncIterator[RunningService]:
    """Run the service with Prometheus and Alertmanager, and without the demo fleet."""
    options = UpOptions(demo=False, fast=True, prometheus_port=0, alertmanager_port=0, receiver_port=0)
    async with up(settings, options, say=lambda line: None) as service_run:
        assert service_run.prometheus_url, "this test needs the prometheus program: `make test` fetches it"
        assert service_run.alertmanager_url, (
            "this test needs the alertmanager program: `make test` fetches it"
        )
        yield service_run


@pytest.fixture
async def running_service(settings: Settings) -> AsyncIterator[RunningService]:
    async with up_without_demo(settings) as service_run:
        yield service_run


@contextlib.asynccontextmanager
async def serving_with_alertmanager(
    settings: Settings, options: UpOptions | None = None, *, hold_outbox: bool = False
) -> AsyncIterator[RunningService]:
    """Run the service with a real Alertmanager, and the recorder in place of Slack and PagerDuty."""
    options = options or UpOptions()
    program = find_program("alertmanager")
    assert program, "this test needs the alertmanager program: `make test` fetches it"
    receiver = listen("127.0.0.1", 0, what="the recorder", option="")
    [url] = settings.alerting.alertmanager_urls
    async with contextlib.AsyncExitStack() as stack:
        recorder = Recorder()
        await stack.enter_async_context(serve_app(recorder, receiver))
        service_run = await stack.enter_async_context(serving(settings, hold_outbox=hold_outbox))
        service_run.service.recorder = recorder
        alertmanager = await start_alertmanager(
            program, settings, options, url, service_run.url, make_socket_url(receiver)
        )
        stack.push_async_callback(alertmanager.stop)
        yield service_run


class AgentProcess:
    """An agent in its own process, and the two files that make it recover and stop."""

    def __init__(self, script: str, otlp_url: str, folder: Path) -> None:
        self._recover, self._stop = folder / "recover", folder / "stop"
        self.process = subprocess.Popen(
            [sys.executable, str(AGENTS / script), str(self._recover), str(self._stop)],
            env=environment(OTEL_EXPORTER_OTLP_ENDPOINT=otlp_url, QUEENRIGHT_STORAGE=str(folder)),
            stderr=subprocess.PIPE,
            text=True,
        )

    def recover(self) -> None:
        self._recover.touch()

    def stop(self) -> str:
        """Let the agent end by itself, and return its stderr."""
        self._recover.touch()
        self._stop.touch()
        return self.process.communicate(timeout=20)[1]

    def kill(self) -> None:
        """Kill the agent, and close the pipe to it."""
        self.process.kill()
        if self.process.stderr is not None and not self.process.stderr.closed:
            self.process.communicate()


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[[str, str], AgentProcess]]:
    """Yield a function that starts an agent. Agents that still run at the end are killed."""
    with contextlib.ExitStack() as stack:

        def start(script: str, otlp_url: str) -> AgentProcess:
            agent = AgentProcess(script, otlp_url, tmp_path)
            stack.callback(agent.kill)
            return agent

        yield start
