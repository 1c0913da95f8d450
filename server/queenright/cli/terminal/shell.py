"""`queenright shell`: a conversation with one agent on its own runtime."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from functools import partial
from pathlib import Path

from queenright.cli.options import ShellOptions
from queenright.cli.output.streams import guard_streams
from queenright.cli.terminal.shell_session import ShellSession, is_interactive
from queenright.health.breakers import BreakerRegistry, report_change
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.otlp import ENDPOINT_ENV
from queenright.instrumentation.telemetry import shared_telemetry
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.agents.runner import AgentRunner
from queenright.server.agents.node_guards import make_health_guard
from queenright.server.settings import load_settings


def run_shell(folder: Path, options: ShellOptions, *, model: str | None) -> int:
    """
    Talk to an agent until the user quits; return the exit code: 1 if the last run did not complete.

    Raises:
        QueenrightError: The settings are invalid, or the agent cannot be loaded or started.
    """
    configure_logging()
    load = make_agent_loader(options.config, telemetry=options.telemetry)
    agents: dict[str, AgentRunner] = {}
    # The user may load agents from anywhere, the agent only from folders next to its own.
    agent_lifecycle = Lifecycle([folder.resolve().parent], load=load, runners=agents)
    runner = load(folder, model=model, storage=options.storage, offered_tools=agent_lifecycle.tools)
    return asyncio.run(_converse(runner, Lifecycle([Path("/")], load=load, runners=agents), options))


def make_agent_loader(config: Path | None, *, telemetry: bool) -> partial[AgentRunner]:
    """
    Return ``AgentRunner.load`` with the guards and circuit breakers of the settings.

    Raises:
        QueenrightError: The settings are invalid.
    """
    health = load_settings(config).health_monitoring
    return partial(
        AgentRunner.load,
        telemetry=shared_telemetry() if telemetry else None,
        guards=make_health_guard(health),
        breakers=BreakerRegistry(health.circuit_breaker, on_change=report_change),
    )


async def _converse(runner: AgentRunner, lifecycle: Lifecycle, options: ShellOptions) -> int:
    try:
        for warning in (await asyncio.to_thread(runner.validate)).warnings:
            print(f"warning: {warning}", file=sys.stderr)
        runtime = await runner.start()
        info = runner.info()
        summary = (info.description or info.goal or "ready").rstrip(".")
        print(f"{info.name}: {summary}. /help lists the commands.")
        session = ShellSession(runtime, lifecycle, sys.stdout, is_interactive=is_interactive())
        await session.run(resume=options.resume)
        return 1 if session.has_failed else 0
    finally:
        await runner.cleanup_async()
        await lifecycle.close()


def configure_logging() -> None:
    """Log warnings to stderr; warn about a missing service only if telemetry was configured."""
    if sys.platform == "win32":
        raise QueenrightError("Windows is not supported; run it in WSL or in a container.")
    guard_streams()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if ENDPOINT_ENV not in os.environ:
        logging.getLogger("queenright.instrumentation").setLevel(logging.ERROR)
