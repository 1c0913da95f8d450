"""
Run `queenright up`: the service, Prometheus, Alertmanager, and a demo fleet.

The programs listen on loopback. A missing program is reported, and the service runs without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from queenright.alerting.recorder import Recorder
from queenright.demo import DEMO_AGENTS, DEMO_FRAMEWORK, DEMO_PRICES, HOOK_AGENT, Fleet, HookClient
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.service_token import TOKEN_ENV
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.ops.child_processes import Child, wait_for_answer
from queenright.server.ops.folders import require_usable_storage
from queenright.server.ops.programs import ProgramNotFoundError, find_program
from queenright.server.ops.secret_files import InvalidSecretError
from queenright.server.ops.sockets import find_free_port, listen, make_socket_url, serve_app
from queenright.server.ports import API_PURPOSE
from queenright.server.service import Service
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from queenright.server.telemetry.pricing import Price
from queenright.server.up_options import UpOptions
from queenright.server.up_programs import start_alertmanager, start_prometheus, write_secret

PrintLine = Callable[[str], None]


FindProgram = Callable[[str], Path | None]


_DEMO_PRICES: Final = {model: Price(*price) for model, price in DEMO_PRICES.items()}


class AlreadyRunningError(QueenrightError):
    """Raised when another `queenright up` uses the same storage folder."""

    def __init__(self, storage: Path, process_description: str) -> None:
        super().__init__(
            f"Queenright is already running on {storage} ({process_description}). "
            "Stop it with Ctrl-C in its terminal, or use another folder with --storage."
        )


@contextlib.contextmanager
def lock_storage(storage: Path, url: str) -> Iterator[None]:
    """
    Hold the storage folder's lock. At the end, remove the folder if this created it and it is empty.

    Raises:
        AlreadyRunningError: Another process holds the lock.
    """
    created_folders = [folder for folder in (storage, *storage.parents) if not folder.exists()]
    require_usable_storage(storage)
    path = storage / "up.lock"
    with path.open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise AlreadyRunningError(storage, lock.read().strip() or "unknown process") from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()}, {url}")
        lock.flush()
        try:
            yield
        finally:
            # Remove it while the lock is held, so that no other process can hold it.
            if created_folders and [file.name for file in storage.iterdir()] == [path.name]:
                path.unlink()
                _remove_empty(created_folders)


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, innermost first, up to the first one that is not empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def keep_sessions_in_storage(settings: Settings) -> Settings:
    """Return settings that store the sessions of agents in the storage folder, unless their folder is set."""
    if settings.agents.storage is not None:
        return settings
    agents = settings.agents.model_copy(update={"storage": settings.storage / "agents"})
    return settings.model_copy(update={"agents": agents})


@contextlib.asynccontextmanager
async def up(
    settings: Settings, options: UpOptions, *, say: PrintLine, find: FindProgram = find_program
) -> AsyncIterator[RunningService]:
    """
    Run the service and its programs. On exit, stop only what this started.

    Args:
        settings: All settings. The addresses of started programs are added.
        options: What to start.
        say: Called with each line of progress.
        find: Returns the path of a program, or None if there is none.

    Raises:
        AlreadyRunningError, PortInUseError, ChildProcessFailedError, InvalidSecretError, StoreError: The
            message has the fix.
    """
    _check_secret_file(
        options.slack_url_file, "--slack-url-file", "a Slack webhook URL", ("https://", "http://")
    )
    _check_secret_file(options.pagerduty_key_file, "--pagerduty-key-file", "a PagerDuty routing key", ())
    settings = keep_sessions_in_storage(settings)
    if options.demo:
        settings = _with_demo_agents(settings)
    address = f"http://{settings.http.host}:{settings.http.port}"
    with lock_storage(settings.storage, address):
        async with contextlib.AsyncExitStack() as stack:
            # Check this port first: if another Queenright is running, the error should be about its API.
            find_free_port(settings.http.host, settings.http.port, what=API_PURPOSE, option="--port")
            recorder, receiver_url = await stack.enter_async_context(_run_receiver(options))
            # Do not start a second Alertmanager if one is configured.
            alertmanager = (
                None if settings.alerting.alertmanager_urls else _find_program("alertmanager", find, say)
            )
            settings, alertmanager_url = _assign_alertmanager_port(settings, options, alertmanager)
            prometheus = _find_program("prometheus", find, say)
            settings, prometheus_url = _assign_prometheus_port(settings, options, prometheus)
            # The programs stop after the service, which delivers to Alertmanager until it stops.
            programs = await stack.enter_async_context(contextlib.AsyncExitStack())
            say("Starting the service ...")
            prices = _DEMO_PRICES if options.demo else None
            running = await stack.enter_async_context(
                serving(settings, hold_outbox=alertmanager is not None, prices=prices)
            )
            running.has_real_receiver = bool(options.slack_url_file or options.pagerduty_key_file)
            if alertmanager and not (options.slack_url_file and options.pagerduty_key_file):
                running.service.recorder = recorder
            token_file = None
            if running.own_token:
                token_file = write_secret(settings.storage / "own_token", running.own_token).resolve()
            if alertmanager and alertmanager_url:
                say("Starting Alertmanager ...")
                child = await start_alertmanager(
                    alertmanager,
                    settings,
                    options,
                    alertmanager_url,
                    running.url,
                    receiver_url,
                    token_file=token_file,
                )
                programs.push_async_callback(child.stop)
                await stack.enter_async_context(_watch_child(child, alertmanager_url, running.service, say))
                running.service.outbox.release()
                running.alertmanager_url = alertmanager_url
            if prometheus and prometheus_url:
                say("Starting Prometheus ...")
                port = urlsplit(prometheus_url).port or 0
                # Use the service's settings, because they contain its URL for people.
                child = await start_prometheus(
                    prometheus, running.service.settings, options, port, running.url, token_file
                )
                programs.push_async_callback(child.stop)
                await stack.enter_async_context(_watch_child(child, prometheus_url, running.service, say))
                running.prometheus_url = prometheus_url
            if options.demo:
                await stack.enter_async_context(_run_demo(running, settings.storage, options, say))
            yield running


def _with_demo_agents(settings: Settings) -> Settings:
    """Return settings whose agent roots include the demo agents."""
    agents = settings.agents.model_copy(update={"roots": (*settings.agents.roots, DEMO_AGENTS)})
    return settings.model_copy(update={"agents": agents})


@contextlib.asynccontextmanager
async def _run_receiver(options: UpOptions) -> AsyncIterator[tuple[Recorder, str]]:
    """Run the stand-in for Slack and PagerDuty; yield it and its URL."""
    recorder = Recorder()
    sock = listen(
        "127.0.0.1",
        options.receiver_port,
        what="the stand-in for Slack and PagerDuty",
        option="--receiver-port",
    )
    with contextlib.closing(sock):
        async with serve_app(recorder, sock):
            yield recorder, make_socket_url(sock)


@contextlib.asynccontextmanager
async def _run_demo(
    running: RunningService, storage: Path, options: UpOptions, say: PrintLine
) -> AsyncIterator[None]:
    """Run the demo fleet, a client with hooks, and an agent that asks its user a question."""
    fleet = Fleet(
        options.files,
        endpoint=running.otlp_url,
        registry=CollectorRegistry(),
        storage=storage / "demo",
        control=running.url,
        model=options.model,
    )
    async with contextlib.AsyncExitStack() as stack:
        if running.own_token:
            stack.enter_context(_set_token_in_environment(running.own_token))
        files = format_count(fleet.files, "file")
        say(f"Starting the demo fleet on {files} below {options.files.resolve()} ...")
        await end_former_demo_runs(running.service)
        fleet.start()
        stack.push_async_callback(asyncio.to_thread, fleet.stop)
        hooks = HookClient(running.otlp_url, token=running.own_token)
        hooks.start()
        stack.push_async_callback(asyncio.to_thread, hooks.stop)
        await _start_questioning_agent(running.service)
        yield


def _check_secret_file(file: Path | None, option: str, content: str, prefixes: tuple[str, ...]) -> None:
    """Reject an unusable secret file. Alertmanager would start with it, but its pages would be lost."""
    if file is None:
        return
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidSecretError(
            f"{option} {file} cannot be read ({reason}); it should hold {content}."
        ) from None
    if not secret or (prefixes and not secret.startswith(prefixes)) or len(secret.split()) != 1:
        raise InvalidSecretError(f"{option} {file} does not contain {content} and nothing else.")


def _assign_alertmanager_port(
    settings: Settings, options: UpOptions, program: Path | None
) -> tuple[Settings, str | None]:
    """Choose a port. Return settings with the URL of Alertmanager, and this URL; None if there is none."""
    if program is None:
        return settings, None
    port = find_free_port(
        "127.0.0.1", options.alertmanager_port, what="Alertmanager", option="--alertmanager-port"
    )
    url = f"http://127.0.0.1:{port}"
    alerting = settings.alerting.model_copy(update={"alertmanager_urls": (url,)})
    return settings.model_copy(update={"alerting": alerting}), url


def _assign_prometheus_port(
    settings: Settings, options: UpOptions, program: Path | None
) -> tuple[Settings, str | None]:
    """Choose a port. Return the settings with the URL of Prometheus, and this URL; None if there is none."""
    if program is None:
        return settings, None
    port = find_free_port("127.0.0.1", options.prometheus_port, what="Prometheus", option="--prometheus-port")
    url = f"http://127.0.0.1:{port}"
    if settings.judging.prometheus_url is not None:
        return settings, url  # the judge reads the configured Prometheus
    judging = settings.judging.model_copy(update={"prometheus_url": SecretStr(url)})
    return settings.model_copy(update={"judging": judging}), url


@contextlib.asynccontextmanager
async def _watch_child(child: Child, url: str, service: Service, say: PrintLine) -> AsyncIterator[None]:
    """
    Wait until a program is ready at ``url``. Within the block, report a fault if it exits unexpectedly.

    The fault ends when another program answers at ``url``.
    """
    ready_url = f"{url}/-/ready"
    await child.wait_ready(ready_url)

    async def watch() -> None:
        code = await child.process.wait()
        fault = f"{child.name} exited unexpectedly (exit code {code}, {child.log}); restart `queenright up`"
        service.faults.append(fault)
        say(f"warning: {fault}.")
        await wait_for_answer(ready_url)
        service.faults.remove(fault)
        say(f"{child.name} answers again.")

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _start_questioning_agent(service: Service) -> None:
    """Load and start the demo agent that runs in the service and asks its user a question."""
    slot = await service.agents.load(DEMO_AGENTS / "publisher")
    await slot.runtime.trigger("review", {"message": "Which pages are ready?"})


async def end_former_demo_runs(service: Service) -> None:
    """
    End the runs of demo agents whose process was killed, because nothing else ends them.

    They end as cancelled, so that they do not reset the count of failed runs.
    """
    demo_runs = [
        health.vitals
        for health in service.workers()
        if health.vitals.framework == DEMO_FRAMEWORK or health.vitals.agent_id == HOOK_AGENT
    ]
    await service.ingest(
        [
            AgentEvent(
                type=EventType.EXECUTION_FAILED,
                time=service.clock(),
                agent_id=vitals.agent_id,
                session_id=vitals.session_id,
                incarnation_id=vitals.incarnation_id,
                data={"error_type": "cancelled", "error": "the demo was killed"},
            )
            for vitals in demo_runs
            if not vitals.has_ended
        ]
    )


def _find_program(name: str, find: FindProgram, say: PrintLine) -> Path | None:
    path = find(name)
    if path is None:
        say(str(ProgramNotFoundError(name)))
    return path


@contextlib.contextmanager
def _set_token_in_environment(token: str) -> Iterator[None]:
    """Set the token of the demo agents in the environment, until the block ends."""
    variables = {TOKEN_ENV: token, "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Bearer%20{token}"}
    previous_values = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous_values.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
