"""`queenright up` and `queenright serve`: run the service until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import typer

from queenright.cli.output.log_filter import RateLimitedHandler, RateLimiter
from queenright.cli.output.up_screen import UpScreen
from queenright.cli.terminal.signals import wait_unless_stopped
from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.deadline import TaskSet
from queenright.server.middleware.connections import raise_descriptor_limit
from queenright.server.ops.programs import ProgramNotFoundError, find_program
from queenright.server.reload import reload_service_settings
from queenright.server.service import Service
from queenright.server.serving import serving
from queenright.server.settings import Settings
from queenright.server.up import up
from queenright.server.up_options import UpOptions

_log = logging.getLogger(__name__)


def run_up(settings: Settings, options: UpOptions) -> int:
    """Run everything until Ctrl-C; return the exit code."""
    screen = UpScreen()
    _log_to_screen(screen)

    async def run() -> None:
        stop = _create_stop_event()
        async with up(settings, options, say=screen.print_line) as running:
            screen.print_addresses(running, options)
            await _run_until(stop, screen.follow(running))
            screen.print_line("Stopping ...")

    _run_event_loop(run())
    screen.print_line("Stopped.")
    return 0


def run_serve(settings: Settings) -> int:
    """Run the service until it is stopped; return the exit code."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[RateLimitedHandler()],
    )
    for logger_name in ("httpx", "alembic"):
        logging.getLogger(logger_name).setLevel(logging.WARNING)

    async def run() -> None:
        stop = _create_stop_event()
        async with serving(settings) as running:
            reload_on_sighup(lambda: [running.service])
            typer.echo(f"Console {running.url}, telemetry {running.otlp_url}")
            await stop.wait()

    async def run_member() -> None:
        from queenright.server.cluster.member import run_cluster_member

        stop = _create_stop_event()
        async with run_cluster_member(settings) as member:
            reload_on_sighup(member.list_services)
            typer.echo(f"Console {member.ports.api_url}, telemetry {member.ports.otlp_url}")
            await stop.wait()

    _run_event_loop(run() if settings.cluster.nats is None else run_member())
    return 0


def check_up() -> int:
    """Print where the programs for `up` are; return 1 if one is missing."""
    missing = 0
    for name in ("prometheus", "alertmanager"):
        path = find_program(name)
        missing += path is None
        typer.echo(f"{name}: {path}" if path else str(ProgramNotFoundError(name)))
    return 1 if missing else 0


def _run_event_loop(main: Coroutine[Any, Any, None]) -> None:
    if sys.platform == "win32":
        raise QueenrightError("Windows is not supported; run it in WSL or in a container.")
    import uvloop

    _open_standard_streams()
    raise_descriptor_limit()
    tune_garbage_collector()
    shorten_switch_interval()
    uvloop.run(main)


def _open_standard_streams() -> None:
    """Open closed standard streams on /dev/null, as libuv aborts if it gets one of their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _create_stop_event() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


def reload_on_sighup(find_services: Callable[[], Sequence[Service]]) -> None:
    """
    Reload the settings on SIGHUP. Errors in them are logged, and the old settings stay in force.

    Args:
        find_services: Returns the services of this process; none if other processes of a cluster run them.
    """

    async def reload_settings() -> None:
        services = find_services()
        if not services:
            _log.warning("settings not reloaded: another process is the owner; restart this one instead")
        for service in services:
            try:
                await reload_service_settings(service)
            except QueenrightError as error:
                _log.error("settings not reloaded, the old ones stay in force: %s", error)

    tasks = TaskSet()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: tasks.start(reload_settings()))


async def _run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    if not await wait_unless_stopped(task, stop):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _log_to_screen(screen: UpScreen) -> None:
    """Print warnings through the screen, like all its other lines."""

    limiter = RateLimiter()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (limited_record := limiter.filter_record(record)) is not None:
                screen.print_line(f"{limited_record.levelname.lower()}: {limited_record.getMessage()}")

    logging.basicConfig(level=logging.WARNING, handlers=[Handler()])


def tune_garbage_collector() -> None:
    """
    Run the garbage collector less often, and never over objects that live as long as the process.

    Telemetry creates and drops many small objects, none of them in cycles. By default the collector scans the
    data of every worker again and again, which costs a tenth of the event rate.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def shorten_switch_interval() -> None:
    """
    Let threads take turns after half a millisecond instead of five.

    A read of the store runs in a thread and waits for its turn several times. Next to a busy loop this cuts a
    read's time to two thirds and its 99th percentile to a third, at no cost in throughput.
    """
    sys.setswitchinterval(0.0005)
