"""Commands that run something: `up`, `serve`, and the checks that need no running service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import typer
import yaml

from queenright.cli.log import Once, OnceHandler
from queenright.cli.screen import Screen
from queenright.instrumentation.errors import QueenrightError
from queenright.server.middleware.connections import raise_descriptor_limit
from queenright.server.ops.programs import ProgramNotFoundError, find_program
from queenright.server.ops.reload import reload
from queenright.server.process_tuning import shorten_switch_interval, tune_garbage_collector
from queenright.server.service import Service
from queenright.server.settings import Settings
from queenright.server.up import Running, UpOptions, serving, up


def run_up(settings: Settings, options: UpOptions) -> int:
    """Run everything until Ctrl-C; return the exit code."""
    screen = Screen()
    _log_to(screen)

    async def stay() -> None:
        stop = _stop_signals()
        async with up(settings, options, say=screen.say) as running:
            screen.started(running, options)
            await _until(stop, screen.follow(running))
            screen.say("Stopping what was started ...")

    _run(stay())
    screen.say("Stopped.")
    return 0


def run_serve(settings: Settings) -> int:
    """Run the service until it is told to stop; return the exit code."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[OnceHandler()],
    )
    for chatty in ("httpx", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

    async def stay() -> None:
        stop = _stop_signals()
        async with serving(settings) as running:
            reload_at_hangup(running.service)
            typer.echo(f"Status page {running.url}, telemetry {running.otlp_url}")
            await stop.wait()

    _run(stay())
    return 0


def check_up() -> int:
    """Say which programs `up` would find; 1 if one is missing."""
    missing = 0
    for name in ("prometheus", "alertmanager"):
        found = find_program(name)
        missing += found is None
        typer.echo(f"{name}: {found}" if found else str(ProgramNotFoundError(name)))
    return 1 if missing else 0


def shown_settings(settings: Settings) -> str:
    """Return the settings as YAML; credentials in URLs are masked."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)


def _run(main: Coroutine[Any, Any, None]) -> None:
    if sys.platform == "win32":
        raise QueenrightError("Windows is not supported; run it in WSL or in a container.")
    import uvloop

    raise_descriptor_limit()
    tune_garbage_collector()
    shorten_switch_interval()
    uvloop.run(main)


def _stop_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


def reload_at_hangup(service: Service) -> None:
    """Let SIGHUP read the settings again; a fault in them is logged, and nothing changes."""

    async def again() -> None:
        try:
            await reload(service)
        except QueenrightError as error:
            logging.getLogger(__name__).error("the settings stay as they were: %s", error)

    under_way: set[asyncio.Task[None]] = set()

    def begin() -> None:
        task = asyncio.create_task(again())
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, begin)


async def _until(stop: asyncio.Event, shown: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(shown)
    waiter = asyncio.create_task(stop.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    for pending in (task, waiter):
        pending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await pending


def _log_to(screen: Screen) -> None:
    """Warnings go through the screen, so that they do not tear it."""

    once = Once()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (said := once.passes(record)) is not None:
                screen.say(f"{said.levelname.lower()}: {said.getMessage()}")

    logging.basicConfig(level=logging.WARNING, handlers=[Handler()])


__all__ = ["Running", "check_up", "reload_at_hangup", "run_serve", "run_up", "shown_settings"]
