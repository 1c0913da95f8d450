"""Run a real client, connected by ``queenright connect``, and record what a real service shows about it."""

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
_FINAL_POLL_SECONDS: Final = 7.0
"""Seconds for which the service is polled after a client's exit: log records are exported every five."""
_POLL_SECONDS: Final = 0.2
_SERVICE_SECONDS: Final = 60.0
_STEERED_CALLS: Final = 12
_CONNECT_NAMES: Final = {"gemini-cli": "gemini"}
"""The name of a client for ``queenright connect``, if it differs."""

_MANY_CALLS: Final[tuple[Call | Say, ...]] = (
    *(Call(f"echo {number}") for number in range(_STEERED_CALLS)),
    Say("Done."),
)
STEERED_SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="nudged",
            description="an operator sends a nudge after the first tool call",
            turns=_MANY_CALLS,
        ),
        Scenario(
            name="terminated",
            description="an operator terminates the run after the first tool call",
            turns=_MANY_CALLS,
        ),
    )
}
_SCENARIOS_WITHOUT_CELL: Final = ("permission_granted", "subagent", "mcp_missing")
"""Recorded scenarios that the matrix does not contain."""
LIVE_SCENARIOS: Final = {
    **{
        name: (
            replace(recorded, ends_after=_PROVIDER_SECONDS)
            if recorded.ends_after == FAILED_SECONDS
            else recorded
        )
        for name, recorded in SCENARIOS.items()
        if name not in _SCENARIOS_WITHOUT_CELL
    },
    **STEERED_SCENARIOS,
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
    """
    Findings while the client ran, with the seconds from the script's last tool call; 0 before that call.
    """
    wait_delay: float | None = None
    """Seconds from the model's call until the wait for a person was shown; None if it was not shown."""
    command_output: str = ""
    """The output of ``queenright nudge`` or ``queenright terminate``."""
    has_reached_model: bool = False
    has_finished_script: bool = False
    """Whether the model was asked for every turn of the script."""
    error: str = ""


@contextlib.asynccontextmanager
async def _run_service(folder: Path) -> AsyncIterator[tuple[str, str]]:
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
            await _wait_until_ready(url, process)
            yield url, f"http://127.0.0.1:{otlp}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()


async def _wait_until_ready(url: str, process: asyncio.subprocess.Process) -> None:
    deadline = time.monotonic() + _SERVICE_SECONDS
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        while time.monotonic() < deadline and process.returncode is None:
            with contextlib.suppress(httpx.TransportError):
                if (await http.get("/readyz")).status_code == 200:
                    return
            await asyncio.sleep(_POLL_SECONDS)
    raise ServiceError(f"queenright serve was not ready within {_SERVICE_SECONDS:.0f} s at {url}")


async def _run_command(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
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


async def _poll_service(
    observed_run: ObservedRun, url: str, provider: Provider, is_over: asyncio.Event
) -> None:
    """Poll the service until ``_FINAL_POLL_SECONDS`` after the client's exit."""
    last_call_at: float | None = None
    deadline: float | None = None
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        while deadline is None or time.monotonic() < deadline:
            if is_over.is_set() and deadline is None:
                deadline = time.monotonic() + _FINAL_POLL_SECONDS
            if provider.last_call_sent.is_set() and last_call_at is None:
                last_call_at = time.monotonic()
            since = 0.0 if last_call_at is None else time.monotonic() - last_call_at
            for row in (await http.get("/api/agents")).json()["agents"]:
                observed_run.rows[row["session_id"]] = row
                if not is_over.is_set():
                    for finding in row["findings"]:
                        observed_run.findings.setdefault(finding["kind"], since)
                    if row["waiting"] and observed_run.wait_delay is None and last_call_at is not None:
                        observed_run.wait_delay = since
                if (
                    observed_run.scenario in STEERED_SCENARIOS
                    and row["tool_calls"]
                    and not observed_run.command_output
                ):
                    observed_run.command_output = await _steer_run(
                        observed_run.scenario, row["agent_id"], url
                    )
            await asyncio.sleep(_POLL_SECONDS)
    observed_run.has_reached_model = provider.has_received(NUDGE)
    observed_run.has_finished_script = provider.last_call_sent.is_set()


async def _steer_run(scenario: str, agent: str, url: str) -> str:
    if scenario == "nudged":
        return await _run_command("nudge", agent, "--message", NUDGE, "--url", url)
    # The command returns once the run has stopped, or after its time limit.
    return await _run_command("terminate", agent, "--reason", "It is not needed.", "--url", url)


async def observe_client(client: Client, scenario: Scenario, command: list[str]) -> ObservedRun:
    """Run a client in a scenario, connected by ``queenright connect``, and return what the service showed."""
    observed_run, is_over = ObservedRun(scenario.name), asyncio.Event()
    provider = Provider(scenario.turns)
    name = _CONNECT_NAMES.get(client.name, client.name)
    with tempfile.TemporaryDirectory(prefix="watched-run-", ignore_cleanup_errors=True) as folder:
        async with _run_service(Path(folder)) as (url, otlp):

            async def connect(environment: Mapping[str, str]) -> None:
                python_path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
                arguments = ("connect", name, "--yes", "--otlp-url", otlp)
                await _run_command(*arguments, environment={**environment, **python_path})

            polling = asyncio.create_task(_poll_service(observed_run, url, provider, is_over))
            try:
                await run_client(
                    client, scenario, "", command, otlp="", hooks="", provider=provider, connect=connect
                )
            except (RunError, ServiceError) as error:
                observed_run.error = str(error)
            finally:
                is_over.set()
                await polling
    return observed_run
