"""Runs a real client, connected by ``queenright connect``, and records what a real service shows about it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx

from queenright.server.ops.sockets import find_free_port
from tests.clients.clients import Client
from tests.clients.provider import Provider
from tests.clients.recording import RunError, run_client
from tests.clients.scenarios import FAILED_SECONDS, SCENARIOS, Call, Say, Scenario

PROGRAM: Final = Path(sys.executable).with_name("queenright")
LIMITS: Final = {"tool_seconds": 8, "llm_seconds": 30}
"""``health_monitoring.stall`` for these runs, instead of 600 and 240 seconds."""
NUDGE: Final = "Look at missing.txt before you answer."
_PROVIDER_SECONDS: Final = 60.0
"""Seconds for which a client with a failing provider is observed, instead of ``FAILED_SECONDS``."""
_LAST_SECONDS: Final = 7.0
"""Seconds for which the service is polled after a client's exit: log records are exported every five."""
_ASK_SECONDS: Final = 0.2
_SERVICE_SECONDS: Final = 60.0
_STEERED_CALLS: Final = 12
_NAMES: Final = {"gemini-cli": "gemini"}
"""The name of a client for ``queenright connect``, if it differs."""

_MANY: Final[tuple[Call | Say, ...]] = (
    *(Call(f"echo {number}") for number in range(_STEERED_CALLS)),
    Say("Done."),
)
STEERED: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="nudged", description="an operator sends a nudge after the first tool call", turns=_MANY
        ),
        Scenario(
            name="terminated",
            description="an operator terminates the run after the first tool call",
            turns=_MANY,
        ),
    )
}
_NOT_RUN: Final = ("permission_granted", "subagent", "mcp_missing")
"""Recorded scenarios without a cell in the matrix."""
LIVE: Final = {
    **{
        name: replace(one, ends_after=_PROVIDER_SECONDS) if one.ends_after == FAILED_SECONDS else one
        for name, one in SCENARIOS.items()
        if name not in _NOT_RUN
    },
    **STEERED,
}


class ServiceError(Exception):
    """Raised when a command of ``queenright`` fails, or the service does not start."""


@dataclass(slots=True)
class ObservedRun:
    """What the service showed in a scenario."""

    scenario: str
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The latest row of each session."""
    findings: dict[str, float] = field(default_factory=dict)
    """Findings while the client ran, with the seconds since the script's last tool call or the start."""
    waited: float | None = None
    """Seconds from the model's call until the wait for a person was shown; None: never."""
    order: str = ""
    """The output of ``queenright nudge`` or ``terminate``."""
    has_reached_model: bool = False
    is_script_over: bool = False
    """Whether the model was asked for every turn in the script."""
    error: str = ""


@contextlib.asynccontextmanager
async def _serve(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Run ``queenright serve`` in its own folder; yield its API and telemetry URLs."""
    api = find_free_port("127.0.0.1", 0, what="the service", option="port")
    otlp = find_free_port("127.0.0.1", 0, what="its telemetry", option="otlp-port")
    settings = folder / "queenright.yaml"
    settings.write_text(json.dumps({"health_monitoring": {"stall": LIMITS}}), encoding="utf-8")
    with (folder / "serve.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(PROGRAM, "serve", "--config", settings, "--storage", folder / "storage"),
            *("--port", str(api), "--otlp-port", str(otlp)),
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        try:
            url = f"http://127.0.0.1:{api}"
            await _until_ready(url, process)
            yield url, f"http://127.0.0.1:{otlp}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()


async def _until_ready(url: str, process: asyncio.subprocess.Process) -> None:
    deadline = time.monotonic() + _SERVICE_SECONDS
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        while time.monotonic() < deadline and process.returncode is None:
            with contextlib.suppress(httpx.TransportError):
                if (await http.get("/readyz")).status_code == 200:
                    return
            await asyncio.sleep(_ASK_SECONDS)
    raise ServiceError(f"queenright serve is not ready within {_SERVICE_SECONDS:.0f} s at {url}")


async def _queenright(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a ``queenright`` command and return its output; raise if it fails."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *arguments,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise ServiceError(
            f"queenright {' '.join(arguments)} exited with {process.returncode}:\n{output.decode()}"
        )
    return output.decode()


async def _observe(watched: ObservedRun, url: str, provider: Provider, is_over: asyncio.Event) -> None:
    """Poll the service until the client has exited, and some seconds longer."""
    at_last: float | None = None
    deadline: float | None = None
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        while deadline is None or time.monotonic() < deadline:
            if is_over.is_set() and deadline is None:
                deadline = time.monotonic() + _LAST_SECONDS
            if provider.is_at_last.is_set() and at_last is None:
                at_last = time.monotonic()
            since = 0.0 if at_last is None else time.monotonic() - at_last
            for row in (await http.get("/api/agents")).json()["agents"]:
                watched.rows[row["session_id"]] = row
                if not is_over.is_set():
                    for finding in row["findings"]:
                        watched.findings.setdefault(finding["kind"], since)
                    if row["waiting"] and watched.waited is None and at_last is not None:
                        watched.waited = since
                if watched.scenario in STEERED and row["tool_calls"] and not watched.order:
                    watched.order = await _send_order(watched.scenario, row["agent_id"], url)
            await asyncio.sleep(_ASK_SECONDS)
    watched.has_reached_model = provider.has_received(NUDGE)
    watched.is_script_over = provider.is_at_last.is_set()


async def _send_order(scenario: str, agent: str, url: str) -> str:
    if scenario == "nudged":
        return await _queenright("nudge", agent, "--message", NUDGE, "--url", url)
    # The command returns once the run has stopped, or after its time limit.
    return await _queenright("terminate", agent, "--reason", "It is not needed.", "--url", url)


async def observe_client(client: Client, scenario: Scenario, command: list[str]) -> ObservedRun:
    """Run a client in a scenario, connected by ``queenright connect``, and return what the service showed."""
    watched, is_over = ObservedRun(scenario.name), asyncio.Event()
    provider = Provider(scenario.turns)
    name = _NAMES.get(client.name, client.name)
    with tempfile.TemporaryDirectory(prefix="watched-run-", ignore_cleanup_errors=True) as text:
        async with _serve(Path(text)) as (url, otlp):

            async def connect(environment: Mapping[str, str]) -> None:
                own = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
                arguments = ("connect", name, "--yes", "--otlp-url", otlp)
                await _queenright(*arguments, environment={**environment, **own})

            watching = asyncio.create_task(_observe(watched, url, provider, is_over))
            try:
                await run_client(
                    client, scenario, "", command, otlp="", hooks="", provider=provider, connect=connect
                )
            except (RunError, ServiceError) as error:
                watched.error = str(error)
            finally:
                is_over.set()
                await watching
    return watched
