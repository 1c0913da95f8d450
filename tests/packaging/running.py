"""What documented commands need: a service, Prometheus, Alertmanager, and their data."""

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
"""Folders that the docs assume to exist."""


@dataclass(frozen=True, slots=True)
class CommandRoom:
    """Where documented commands run: the programs, and a folder with the documented files."""

    running: RunningService
    loop: asyncio.AbstractEventLoop
    folder: Path
    ticket: str
    seen: set[str] = field(default_factory=set)
    """Commands that ran before, on any page."""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def run_on_service(self, asked: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the service's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(asked, self.loop).result(60)

    def complete_step(self) -> None:
        """Let the documented worker complete one more step."""
        service = self.running.service
        self.run_on_service(service.ingest(list(looping(service.clock(), agent="researcher", times=1))[1:]))

    def new_worker(self, *, times: int = 3) -> str:
        """Return a new worker that has made one call ``times`` times."""
        name = f"worker-{next(self.numbers)}"
        service = self.running.service
        self.run_on_service(service.ingest(list(looping(service.clock(), agent=name, times=times))))
        return name

    def lost_ticket(self) -> str:
        """Return a ticket about a worker that could not be recovered."""
        service, name = self.running.service, self.new_worker()
        about = {"agent_id": name, "session_id": f"{name}-session", "incarnation_id": "one"}
        failed = {"attempts": 3, "exhausted": True, "reason": "3 attempts were made"}
        now = service.clock()
        events = [
            AgentEvent(type=EventType.EXECUTION_FAILED, time=now, data={"error": "it crashed"}, **about),
            AgentEvent(type=EventType.RECOVERY_FAILED, time=now, data=failed, **about),
        ]
        self.run_on_service(service.ingest(events))

        def found() -> list[str]:
            tickets = service.tickets.open_tickets()
            return [t.ticket_id for t in tickets if t.agent_id == name and t.analysis]

        self.run_on_service(until(found, "a ticket about a lost worker"))
        return found()[0]

    def approval(self) -> str:
        """Return the queen's request to terminate a worker."""
        service = self.running.service
        worker = service.monitor.get(self.new_worker(times=20))
        assert worker is not None
        request = service.approvals.request(worker, ticket_id=self.ticket, reason="It loops.", by="queen")
        return str(self.run_on_service(request).approval_id)

    def escalation(self) -> str:
        """Return an escalation to the orchestrator."""
        path = f"{self.running.url}/api/agents/{self.new_worker()}/escalate"
        response = httpx.post(path, json={"reason": "odd"}, trust_env=False)
        return str(response.raise_for_status().json()["escalation_id"])

    def load(self, agent: str) -> None:
        """Load an agent."""
        if agent not in self.running.service.agents.slots:
            path = str(self.folder / "examples" / agent)
            httpx.post(f"{self.running.url}/api/agents", json={"path": path}, trust_env=False, timeout=60)


def write(folder: Path) -> None:
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


def prepare(place: CommandRoom) -> None:
    """Create a silence, so that the service knows Alertmanager, and a token if the page has one."""
    env = os.environ | {"QUEENRIGHT_URL": place.running.url}
    silence = ("silences", "add", place.lost_ticket(), "--for", "1h", "--comment", "known")
    made = queenright(*silence, cwd=place.folder, env=env)
    assert made.returncode == 0, made.stderr
    queenright("audit", "export", "--out", "trail.jsonl", cwd=place.folder, env=env)
    shutil.copy(place.folder / ".queenright" / "audit-key.pub", place.folder)
    token = queenright("token", "create", "pages", "--role", "admin", "--json", cwd=place.folder)
    (place.folder / ".config/queenright/token").write_text(json.loads(token.stdout)["token"])


@contextlib.contextmanager
def running_in(folder: Path) -> Iterator[CommandRoom]:
    """Run everything in a folder."""
    write(folder)
    settings = load_settings(
        defaults=DEMO_DEFAULTS | {"storage": folder / ".queenright"},
        http={"port": 0},
        otlp={"port": 0},
        agents={"roots": [folder / "examples"], "storage": folder / "sessions"},
        health_monitoring={"intervention": {"escalation": {"orchestrator": "none"}}},
    )
    options = UpOptions(demo=False, fast=False, prometheus_port=0, alertmanager_port=0, receiver_port=0)
    places: list[CommandRoom] = []
    stop = threading.Event()

    async def serve() -> None:
        async with up(settings, options, say=lambda line: None) as running:
            service = running.service
            breaker = service.breakers.get("tool_execution", "researcher", "search")
            for _ in range(10):
                with contextlib.suppress(Exception):
                    breaker.call(lambda: 1 // 0)
            await service.ingest(list(looping(service.clock(), agent="researcher")))
            await until(lambda: any(t.analysis for t in service.tickets.open_tickets()), "a ticket")
            ticket = service.tickets.open_tickets()[0].ticket_id
            places.append(CommandRoom(running, asyncio.get_running_loop(), folder, ticket))
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        while not places and thread.is_alive():
            time.sleep(0.02)
        prepare(places[0])
        yield places[0]
    finally:
        stop.set()
        thread.join()
