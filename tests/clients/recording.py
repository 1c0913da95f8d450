"""Run a client in a scenario, and record its requests."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import tempfile
import termios
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queenright.server.ops.sockets import Server, listen, make_socket_url
from tests.clients.clients import Client, RunSetup
from tests.clients.install import node_environment
from tests.clients.provider import Provider
from tests.clients.recorder import ReceivedRequest, Recorder
from tests.clients.scenarios import HANG_SCRIPT, NOTES, Scenario

FOLDER_PREFIX: Final = "recorded-run-"
"""Prefix of the folders in which clients run; it must not appear in fixtures."""
_RUN_TIMEOUT_SECONDS: Final = 120.0
"""Time limit in seconds for a client that ends by itself."""
_SCRIPT_TIMEOUT_SECONDS: Final = 90.0
"""Time limit in seconds until the last tool call of the script."""
_MAX_OUTPUT_LENGTH: Final = 3000
"""Maximum number of characters of a client's output in an error."""
_EXIT_TIMEOUT_SECONDS: Final = 20.0
"""Time limit in seconds for the exit after SIGTERM."""
_TERMINAL_SIZE: Final = struct.pack("HHHH", 40, 120, 0, 0)

_HANG_PROGRAM: Final = """\
import urllib.request

urllib.request.urlopen("{url}/wait").read()
"""


@dataclass(frozen=True, slots=True)
class Run:
    """The run of a client."""

    setup: RunSetup
    started_at: float
    """Start of the run, a Unix time."""
    ended_at: float
    """The Unix time at which the client was ended or exited."""
    ended_by: str | None
    """The signal that ended the client, if any."""
    exit_codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """The run of a client, and the requests that it sent."""

    run: Run
    requests: tuple[ReceivedRequest, ...]


class EndedEarlyError(Exception):
    """Raised when a client exits by itself although its scenario ends it."""


class RunError(Exception):
    """Raised when a client does not behave as its scenario expects."""

    def __init__(self, client: Client, scenario: Scenario, error: Exception, output: str) -> None:
        printed = "".join(char for char in output if char.isprintable() or char == "\n")
        problem = "ended before the script did" if isinstance(error, EndedEarlyError) else "took too long"
        super().__init__(
            f"{client.name} {problem}, in scenario {scenario.name}. "
            f"It printed:\n{printed[-_MAX_OUTPUT_LENGTH:]}"
        )


@contextlib.asynccontextmanager
async def serve(routes: list[Route]) -> AsyncIterator[str]:
    """Serve routes on a free port of loopback; yield the URL. Raise errors of handlers at the end."""
    errors: list[Exception] = []

    async def keep_error(request: Request, error: Exception) -> Response:
        errors.append(error)
        return Response(status_code=500)

    application = Starlette(routes=routes, exception_handlers={Exception: keep_error})
    with listen("127.0.0.1", 0, what="the provider and the recorder", option="none") as listener:
        config = uvicorn.Config(
            application, log_level="critical", lifespan="off", timeout_graceful_shutdown=1
        )
        server = Server(config)
        server_task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield make_socket_url(listener)
        finally:
            server.should_exit = True
            await server_task
    if errors:
        raise errors[0]  # the client handled it as an error of its provider


@contextlib.contextmanager
def _open_terminal(output: IO[bytes]) -> Iterator[tuple[int, int]]:
    """
    Yield the file descriptors of a terminal's two ends, the person's and the client's. The screen is written
    to ``output``.
    """
    person_fd, client_fd = pty.openpty()
    fcntl.ioctl(client_fd, termios.TIOCSWINSZ, _TERMINAL_SIZE)
    loop = asyncio.get_running_loop()

    def copy_output() -> None:
        try:
            output.write(os.read(person_fd, 65536))
        except OSError:  # the client has exited
            loop.remove_reader(person_fd)

    loop.add_reader(person_fd, copy_output)
    try:
        yield person_fd, client_fd
    finally:
        loop.remove_reader(person_fd)
        os.close(person_fd)
        os.close(client_fd)


async def _start_client(
    command: list[str], setup: RunSetup, environment: dict[str, str], stdin: int, stdout: int | IO[bytes]
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        cwd=setup.project,
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


async def record(client: Client, scenario: Scenario, variant: str, command: list[str]) -> Recording:
    """Run a client in a scenario, as ``run_client`` does, with a recorder."""
    recorder = Recorder()
    async with serve(recorder.routes) as url:
        run = await run_client(
            client,
            scenario,
            variant,
            command,
            otlp=url,
            hooks=f"{url}/hooks/{client.name}",
            provider=Provider(scenario.turns),
        )
    return Recording(run, tuple(recorder.requests))


async def run_client(
    client: Client,
    scenario: Scenario,
    variant: str,
    command: list[str],
    *,
    otlp: str,
    hooks: str,
    provider: Provider,
    connect: Callable[[Mapping[str, str]], Awaitable[None]] | None = None,
) -> Run:
    """
    Run a client in a scenario, in an empty home and project, with the scripted provider.

    Args:
        client: The client.
        scenario: The scenario.
        variant: The variant of the client's settings; empty for the usual settings.
        command: The command that starts the client, without its arguments.
        otlp: The URL for telemetry, without a path; empty if ``connect`` writes it.
        hooks: The URL for hook calls; empty if ``connect`` writes it.
        provider: The model provider.
        connect: Called with the client's environment before the start, to write settings into its home.

    Raises:
        RunError: The client does not reach the end of the script in time, or exits before that.
    """
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
        async with serve(provider.routes) as url:
            setup = RunSetup(
                Path(folder) / "home", Path(folder) / "project", provider=url, otlp=otlp, hooks=hooks
            )
            setup.home.mkdir()
            setup.project.mkdir()
            (setup.project / "notes.txt").write_text(NOTES, encoding="utf-8")
            (setup.project / HANG_SCRIPT).write_text(_HANG_PROGRAM.format(url=url), encoding="utf-8")
            environment = {
                "HOME": str(setup.home),
                "LANG": "C.UTF-8",
                "PATH": node_environment()["PATH"],
                "TERM": "xterm-256color",
                **client.prepare(setup, scenario, variant),
            }
            if connect is not None:
                await connect(environment)
            command = [*command, *client.arguments(scenario)]
            with contextlib.ExitStack() as stack:
                output = stack.enter_context(tempfile.TemporaryFile())
                stdin: int = asyncio.subprocess.DEVNULL
                stdout: int | IO[bytes] = output
                person_fd = -1
                if scenario.asks_permission:
                    person_fd, stdin = stack.enter_context(_open_terminal(output))
                    stdout = stdin
                started_at = time.time()
                processes = [
                    await _start_client(command, setup, environment, stdin, stdout)
                    for _ in range(scenario.copies)
                ]
                try:
                    ended_by = await _end_clients(processes, provider, scenario, person_fd)
                    ended_at = time.time()
                    exit_codes = await asyncio.wait_for(_wait_for_exit(processes), _EXIT_TIMEOUT_SECONDS)
                except (TimeoutError, EndedEarlyError) as error:
                    raise RunError(client, scenario, error, _read_output(output)) from error
                finally:
                    provider.close()
                    for process in processes:
                        _kill_group(process)
    return Run(setup, started_at, ended_at, ended_by, tuple(exit_codes))


async def _end_clients(
    processes: list[asyncio.subprocess.Process], provider: Provider, scenario: Scenario, person_fd: int
) -> str | None:
    """
    Answer the clients' question, then wait for their exit or end them.

    Returns:
        The name of the signal that ended them; None if they exited by themselves.
    """
    if scenario.ends_after is None:
        await asyncio.wait_for(_wait_for_exit(processes), _RUN_TIMEOUT_SECONDS)
        return None
    await asyncio.wait_for(provider.last_call_sent.wait(), _SCRIPT_TIMEOUT_SECONDS)
    if scenario.answered_after is not None:
        await asyncio.sleep(scenario.answered_after)
        os.write(person_fd, b"\r")  # in every client, the first choice allows the call
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(_wait_for_exit(processes), scenario.ends_after)
        if scenario.may_end:
            return None
        raise EndedEarlyError
    number = signal.SIGKILL if scenario.is_killed else signal.SIGTERM
    for process in processes:
        process.send_signal(number)
    return number.name


def _read_output(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")


async def _wait_for_exit(processes: list[asyncio.subprocess.Process]) -> list[int]:
    return await asyncio.gather(*(process.wait() for process in processes))


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill a client and the processes in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
