"""The real programs of the story: the service, Prometheus that scrapes it and the agents, Alertmanager."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from prometheus_client import CollectorRegistry

from queenright.alerting.config import render_prometheus
from queenright.alerting.files import rules_folder
from queenright.alerting.recorder import Recorder
from queenright.instrumentation import serve_metrics
from queenright.server.ops.child_processes import Child
from queenright.server.ops.sockets import find_free_port, listen, make_socket_url, serve_app
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from queenright.server.up_options import UpOptions
from queenright.server.up_programs import start_alertmanager
from tests.programs import program
from tools.story.settings import CONSTANTS, make_settings


def find_port(what: str) -> int:
    """Return a free port for a child program."""
    return find_free_port("127.0.0.1", 0, what=what, option="none")


@dataclass
class Stage:
    """The running programs and their addresses."""

    running: RunningService
    settings: Settings
    folder: Path
    step_log: Path
    recorder: Recorder
    receiver_url: str
    registry: CollectorRegistry
    mayfly_port: int
    prometheus_url: str
    alertmanager_url: str
    stack: contextlib.AsyncExitStack

    async def start_alertmanager(self) -> None:
        """Start Alertmanager late: earlier notifications must not be lost."""
        child = await start_alertmanager(
            program("alertmanager"),
            self.settings,
            UpOptions(),
            self.alertmanager_url,
            self.running.url,
            self.receiver_url,
        )
        self.stack.push_async_callback(child.stop)
        await child.wait_ready(f"{self.alertmanager_url}/-/ready")


@contextlib.asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Start the service and Prometheus in ``folder``."""
    alertmanager_url = f"http://127.0.0.1:{find_port('Alertmanager')}"
    logs = folder / "steps"
    written = logs / "sessions" / "silent" / "logs" / "tool_logs.jsonl"
    written.parent.mkdir(parents=True)
    written.write_text("")
    settings = make_settings(folder / "storage", alertmanager_url, logs)
    async with contextlib.AsyncExitStack() as stack:
        for name, value in CONSTANTS.items():
            stack.enter_context(mock.patch(name, value))
        recorder = Recorder()
        receiver = listen("127.0.0.1", 0, what="the stand-in for Slack", option="none")
        stack.enter_context(contextlib.closing(receiver))
        await stack.enter_async_context(serve_app(recorder, receiver))
        running = await stack.enter_async_context(serving(settings))
        registry = CollectorRegistry()
        workers = serve_metrics(0, registry=registry)
        mayfly_port = find_port("an agent's metrics")
        prometheus_url = f"http://127.0.0.1:{find_port('Prometheus')}"
        child = await _start_prometheus(
            folder, running.url, alertmanager_url, prometheus_url, [workers, mayfly_port]
        )
        stack.push_async_callback(child.stop)
        await child.wait_ready(f"{prometheus_url}/-/ready")
        yield Stage(
            running=running,
            settings=settings,
            folder=folder,
            step_log=written,
            recorder=recorder,
            receiver_url=make_socket_url(receiver),
            registry=registry,
            mayfly_port=mayfly_port,
            prometheus_url=prometheus_url,
            alertmanager_url=alertmanager_url,
            stack=stack,
        )


async def _start_prometheus(
    folder: Path, service_url: str, alertmanager_url: str, url: str, workers: list[int]
) -> Child:
    config = folder / "prometheus.yml"
    config.write_text(
        render_prometheus(
            service_url=service_url,
            alertmanager_url=alertmanager_url,
            rules=rules_folder(),
            interval="1s",
            workers=[f"127.0.0.1:{port}" for port in workers],
        )
    )
    return await Child.start(
        "Prometheus",
        [
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={url.removeprefix('http://')}",
            "--enable-feature=exemplar-storage",
        ],
        folder / "prometheus.log",
    )
