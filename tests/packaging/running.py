"""The environment of documented commands: a service, Prometheus, Alertmanager, and their data."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import load_settings
from queenright.server.up import up
from queenright.server.up_options import DEMO_DEFAULTS, UpOptions
from tests.packaging.test_documents import ROOT
from tests.runtime.agents import CHATS, CHATTER, write_agent
from tests.server.conftest import looping
from tests.waiting import until
from tests.warm import queenright

T = TypeVar("T")

PREPARED_PATHS = ("etc/prometheus", "var/lib/grafana", "var/lib/queenright", "agents", ".config/queenright")
"""Folders that the documented commands expect."""


@dataclass(frozen=True, slots=True)
class CommandEnvironment:
    """The running programs, and a folder with the documented files."""

    running_service: RunningService
    loop: asyncio.AbstractEventLoop
    folder: Path
    ticket: str
    executed_commands: set[str] = field(default_factory=set)
    """Commands that have already run, on any page."""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def run_on_service(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the service's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def complete_step(self) -> None:
        """Let the documented worker complete one more step."""
        service = self.running_service.service
        self.run_on_service(service.ingest(list(looping(service.clock(), agent="researcher", times=1))[1:]))

    def create_worker(self, *, times: int = 3) -> str:
        """Create a worker that has repeated one call ``times`` times, and return its name."""
        name = f"worker-{next(self.numbers)}"
        service = self.running_service.service
        self.run_on_service(service.ingest(list(looping(service.clock(), agent=name, times=times))))
        return name

    def create_lost_ticket(self) -> str:
        """Create a ticket about a worker that could not be recovered, and return its id."""
        service, name = self.running_service.service, self.create_worker()
        worker = {"agent_id": name, "session_id": f"{name}-session", "incarnation_id": "one"}
        failure = {"attempts": 3, "exhausted": True, "reason": "3 attempts were made"}
        now = service.clock()
        events = [
            AgentEvent(type=EventType.EXECUTION_FAILED, time=now, data={"error": "it crashed"}, **worker),
            AgentEvent(type=EventType.RECOVERY_FAILED, time=now, data=failure, **worker),
        ]
        self.run_on_service(service.ingest(events))

        def find_tickets() -> list[str]:
            tickets = service.tickets.open_tickets()
            return [t.ticket_id for t in tickets if t.agent_id == name and t.analysis]

        self.run_on_service(until(find_tickets, "a ticket about a lost worker"))
        return find_tickets()[0]

    def request_approval(self) -> str:
        """Let the queen request to terminate a worker, and return the id of the approval."""
        service = self.running_service.service
        worker = service.monitor.get(self.create_worker(times=20))
        assert worker is not None
        request = service.approvals.request(worker, ticket_id=self.ticket, reason="It loops.", by="queen")
        return str(self.run_on_service(request).approval_id)

    def create_escalation(self) -> str:
        """Escalate a worker to the orchestrator, and return the id of the escalation."""
        path = f"{self.running_service.url}/api/agents/{self.create_worker()}/escalate"
        response = httpx.post(path, json={"reason": "odd"}, trust_env=False)
        return str(response.raise_for_status().json()["escalation_id"])

    def load_agent(self, agent: str) -> None:
        """Load an agent, unless it is loaded."""
        if agent not in self.running_service.service.agents.slots:
            path = str(self.folder / "examples" / agent)
            httpx.post(
                f"{self.running_service.url}/api/agents", json={"path": path}, trust_env=False, timeout=60
            )


def write_files(folder: Path) -> None:
    """Write the documented files into a folder."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    write_agent(folder / "examples" / "secretary", CHATTER | {"name": "secretary"}, CHATS)
    step = {"kind": "tool", "name": "b", "args": "x", "result_excerpt": "y"}
    run = json.dumps({"dataset": "d", "run_id": "r", "steps": [step]}) + "\n"
    (folder / "runs.jsonl").write_text(run)
    (folder / "runs.jsonl.gz").write_bytes(gzip.compress(run.encode()))
    (folder / "docs").mkdir()
    (folder / "docs" / "one.md").write_text("# One\n")
    (folder / "script.json").write_text(json.dumps({"replies": []}))
    for name in PREPARED_PATHS:
        (folder / name).mkdir(parents=True)
    (folder / "queenright.yaml").write_text(yaml.safe_dump({"storage": str(folder / ".queenright")}))
    alone = {"storage": str(folder / "alone"), "http": {"port": 0}, "otlp": {"port": 0}}
    (folder / "etc" / "queenright.yaml").write_text(yaml.safe_dump(alone))


def prepare_service(environment: CommandEnvironment) -> None:
    """Create a silence, an exported audit trail and an admin token, which the documented commands use."""
    env = os.environ | {"QUEENRIGHT_URL": environment.running_service.url}
    silence = ("silences", "add", environment.create_lost_ticket(), "--for", "1h", "--comment", "known")
    silence_result = queenright(*silence, cwd=environment.folder, env=env)
    assert silence_result.returncode == 0, silence_result.stderr
    queenright("audit", "export", "--out", "trail.jsonl", cwd=environment.folder, env=env)
    shutil.copy(environment.folder / ".queenright" / "audit-key.pub", environment.folder)
    token = queenright("token", "create", "pages", "--role", "admin", "--json", cwd=environment.folder)
    (environment.folder / ".config/queenright/token").write_text(json.loads(token.stdout)["token"])


@contextlib.contextmanager
def run_command_environment(folder: Path) -> Iterator[CommandEnvironment]:
    """Run the programs of the documented commands in a folder."""
    write_files(folder)
    settings = load_settings(
        defaults=DEMO_DEFAULTS | {"storage": folder / ".queenright"},
        http={"port": 0},
        otlp={"port": 0},
        agents={"roots": [folder / "examples"], "storage": folder / "sessions"},
        health_monitoring={"intervention": {"escalation": {"orchestrator": "none"}}},
    )
    options = UpOptions(demo=False, fast=False, prometheus_port=0, alertmanager_port=0, receiver_port=0)
    environments: list[CommandEnvironment] = []
    stop = threading.Event()

    async def serve() -> None:
        async with up(settings, options, say=lambda line: None) as running_service:
            service = running_service.service
            breaker = service.breakers.get("tool_execution", "researcher", "search")
            for _ in range(10):
                with contextlib.suppress(Exception):
                    breaker.call(lambda: 1 // 0)
            await service.ingest(list(looping(service.clock(), agent="researcher")))
            await until(lambda: any(t.analysis for t in service.tickets.open_tickets()), "a ticket")
            ticket = service.tickets.open_tickets()[0].ticket_id
            environments.append(
                CommandEnvironment(running_service, asyncio.get_running_loop(), folder, ticket)
            )
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        while not environments and thread.is_alive():
            time.sleep(0.02)
        prepare_service(environments[0])
        yield environments[0]
    finally:
        stop.set()
        thread.join()
