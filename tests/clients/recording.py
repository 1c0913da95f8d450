"""Runs a client in a scenario, and keeps what it sends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import socket
import struct
import tempfile
import termios
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import uvicorn
from starlette.applications import Starlette

from tests.clients.clients import Client, Place
from tests.clients.install import node_environment
from tests.clients.provider import Provider
from tests.clients.recorder import Received, Recorder
from tests.clients.scenarios import HANG_SCRIPT, NOTES, Scenario

FOLDER_PREFIX: Final = "recorded-run-"
"""How the names of the folders begin in which clients run; no fixture may hold it."""
_MOST_SECONDS: Final = 420.0
"""Longer than any client tries a provider that fails."""
_START_SECONDS: Final = 90.0
_END_SECONDS: Final = 20.0
"""Seconds a client has to end after SIGTERM."""
_TERMINAL_SIZE: Final = struct.pack("HHHH", 40, 120, 0, 0)

_HANG: Final = """\
import urllib.request

urllib.request.urlopen("{url}/wait").read()
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """What one run of a scenario sent, and how it ended."""

    began: float
    """Unix time, as the others."""
    place: Place
    received: list[Received]
    ended_at: float
    """When the client was ended, or had ended by itself."""
    ended_by: str | None
    """The signal that ended it, if any."""
    exit_codes: list[int]
    output: str


@contextlib.asynccontextmanager
async def _serve(application: Starlette) -> AsyncIterator[str]:
    """Serve the application on a free port of loopback; yield its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(application, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@contextlib.contextmanager
def _terminal(output: IO[bytes]) -> Iterator[int]:
    """Yield the client's end of a terminal whose screen goes to ``output``."""
    screen, keyboard = pty.openpty()
    fcntl.ioctl(keyboard, termios.TIOCSWINSZ, _TERMINAL_SIZE)
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            output.write(os.read(screen, 65536))
        except OSError:  # the client is gone
            loop.remove_reader(screen)

    loop.add_reader(screen, read)
    try:
        yield keyboard
    finally:
        loop.remove_reader(screen)
        os.close(screen)
        os.close(keyboard)


async def _start(
    command: list[str], place: Place, environment: dict[str, str], stdin: int, stdout: int | IO[bytes]
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        cwd=place.project,
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


async def record(client: Client, scenario: Scenario, variant: str, command: list[str]) -> Recording:
    """
    Run a client in a scenario, in an empty home, and return what it sent.

    Args:
        client: Which client.
        scenario: Which scenario.
        variant: Which of the client's variants; empty for the usual one.
        command: What starts the client, without its arguments.
    """
    recorder, provider = Recorder(), Provider(scenario.turns)
    application = Starlette(routes=[*provider.routes, *recorder.routes])
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
        async with _serve(application) as url:
            place = Place(Path(folder) / "home", Path(folder) / "project", url)
            place.home.mkdir()
            place.project.mkdir()
            (place.project / "notes.txt").write_text(NOTES, encoding="utf-8")
            (place.project / HANG_SCRIPT).write_text(_HANG.format(url=url), encoding="utf-8")
            environment = {
                "HOME": str(place.home),
                "LANG": "C.UTF-8",
                "PATH": node_environment()["PATH"],
                "TERM": "xterm-256color",
                **client.prepare(place, scenario, variant),
            }
            command = [*command, *client.arguments(scenario)]
            began = time.time()
            with contextlib.ExitStack() as stack:
                output = stack.enter_context(tempfile.TemporaryFile())
                stdin: int = asyncio.subprocess.DEVNULL
                stdout: int | IO[bytes] = output
                if client.needs_terminal(scenario):
                    stdin = stdout = stack.enter_context(_terminal(output))
                processes = [
                    await _start(command, place, environment, stdin, stdout) for _ in range(scenario.copies)
                ]
                try:
                    ended_by = await _end(processes, provider, scenario)
                    ended_at = time.time()
                    if ended_by is not None:
                        await asyncio.wait_for(_wait(processes), _END_SECONDS)
                finally:
                    recorder.close()
                    for process in processes:
                        _kill_group(process)
                exit_codes = await _wait(processes)
                output.seek(0)
                text = output.read().decode(errors="replace")
            received = list(recorder.received)
    return Recording(began, place, received, ended_at, ended_by, exit_codes, text)


async def _end(
    processes: list[asyncio.subprocess.Process], provider: Provider, scenario: Scenario
) -> str | None:
    """Wait until the clients end, or end them; return the name of the signal."""
    if scenario.ends_after is None:
        await asyncio.wait_for(_wait(processes), _MOST_SECONDS)
        return None
    await asyncio.wait_for(provider.last_call.wait(), _START_SECONDS)
    await asyncio.sleep(scenario.ends_after)
    number = signal.SIGKILL if scenario.is_killed else signal.SIGTERM
    for process in processes:
        process.send_signal(number)
    return number.name


async def _wait(processes: list[asyncio.subprocess.Process]) -> list[int]:
    return await asyncio.gather(*(process.wait() for process in processes))


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill a client, and what it has started in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
