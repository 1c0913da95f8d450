"""
Run `queenright` in processes that are forked from one that has already imported everything.

A command is a real process with its own streams, folder, environment, signals, limits and exit code. It does
not show whether a command imports what it needs; for that, tests start ``PROGRAM`` itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

_PRELOADED_MODULES = (
    *(
        "queenright.client.synchronous",
        "queenright.health.audit.audit_export",
        "queenright.judge.evaluation",
        "queenright.cli.jobs.judge",
    ),
    *(
        "queenright.cli.jobs.service",
        "queenright.cli.terminal.run_agent",
        "queenright.cli.jobs.rules",
        "queenright.server.up",
    ),
    *("httpcore", "rich.markdown"),
)

_RUN_AGENTS = ("run", "code", "shell")

PROGRAM = Path(sys.executable).with_name("queenright")


class Command:
    """
    A running command.

    Args:
        arguments: The arguments of ``queenright``.
        cwd: The working directory. Default: that of the test.
        env: The environment. Default: that of the test.
        streams: File descriptors of stdin, stdout and stderr; None closes the stream.
        script: A Python file to run instead of ``queenright``.
        own_session: Start the command in a new session.
        ignored: Signals that the command ignores from the start, as with ``nohup``.
        file_bytes: Maximum size of a file, as with ``ulimit -f``.
    """

    def __init__(
        self,
        *arguments: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        streams: tuple[int | None, int | None, int | None],
        script: Path | None = None,
        own_session: bool = False,
        ignored: Collection[signal.Signals] = (),
        file_bytes: int | None = None,
    ) -> None:
        request = json.dumps(
            {
                "arguments": [str(argument) for argument in arguments],
                "cwd": str(cwd or Path.cwd()),
                "env": _environment(arguments, os.environ if env is None else env),
                "open": [number for number, stream in enumerate(streams) if stream is not None],
                "script": str(script) if script else None,
                "own_session": own_session,
                "ignored": list(ignored),
                "file_bytes": file_bytes,
            }
        ).encode()
        self._results, result_end = socket.socketpair()
        self._code: int | None = None
        with result_end:
            open_streams = (stream for stream in streams if stream is not None)
            _fork_server().send(request, (*open_streams, result_end.fileno()))
        self.pid = int(self._read_line() or "0")
        assert self.pid, "the process that commands are forked from has ended; its output is above"

    def wait(self) -> int:
        """Wait until it ends; return the exit code, or the negative signal number, like ``subprocess``."""
        if self._code is None:
            with self._results:
                self._code = int(self._read_line())
        return self._code

    def ended(self) -> bool:
        """Return whether the command has ended, without waiting."""
        return self._code is not None or bool(select.select([self._results], [], [], 0)[0])

    def send_signal(self, number: int) -> None:
        """Send a signal to the command."""
        os.kill(self.pid, number)

    def _read_line(self) -> str:
        line = b""
        while not line.endswith(b"\n") and (piece := self._results.recv(1)):
            line += piece
        return line.decode()


class InteractiveCommand(Command):
    """
    A command that a test interacts with while it runs. Streams that are not passed are pipes.

    As a context manager, it closes the pipes and waits for the command's end.
    """

    def __init__(
        self,
        *arguments: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        ignored: Collection[signal.Signals] = (),
    ) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (reads, writes), (out, outs), (err, errs) = pipes
        streams = (reads if stdin is None else stdin, outs if stdout is None else stdout, errs)
        super().__init__(*arguments, cwd=cwd, env=env, streams=streams, ignored=ignored)
        for number in (reads, outs, errs):
            os.close(number)
        self.stdin: IO[bytes] = open(writes, "wb", buffering=0)  # noqa: SIM115 - closed by the context
        self.stdout: IO[bytes] = open(out, "rb")  # noqa: SIM115
        self.stderr: IO[bytes] = open(err, "rb")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self.ended():
            self.send_signal(signal.SIGKILL)
        for file in (self.stdin, self.stdout, self.stderr):
            file.close()
        self.wait()


def _environment(arguments: Sequence[str | Path], env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command; its agents use closed endpoints, unless ``env`` sets others."""
    from tests.isolation import CLOSED_ENDPOINTS  # not available in the process that commands are forked from

    return (CLOSED_ENDPOINTS if arguments and arguments[0] in _RUN_AGENTS else {}) | dict(env)


def queenright(
    *arguments: str | Path,
    cwd: Path | None = None,
    typed: str = "",
    env: Mapping[str, str] | None = None,
    script: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command, or a script, to its end, with ``typed`` as stdin."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(typed.encode())
        for file in files:
            file.seek(0)
        stdin_number, out, err = (file.fileno() for file in files)
        code = Command(*arguments, cwd=cwd, env=env, script=script, streams=(stdin_number, out, err)).wait()
        for file in files:
            file.seek(0)
        return subprocess.CompletedProcess(
            arguments, code, files[1].read().decode(), files[2].read().decode()
        )


def start() -> None:
    """Start the imports in the background, so that the first command need not wait for them."""
    _fork_server()


class _ForkServer:
    """The process that commands are forked from; it ends when this process does."""

    def __init__(self) -> None:
        self._requests, server_end = socket.socketpair()
        self._lock = threading.Lock()
        with server_end:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(server_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[server_end.fileno()],
            )
        atexit.register(self.close)

    def send(self, request: bytes, numbers: tuple[int, ...]) -> None:
        with self._lock:
            socket.send_fds(self._requests, [len(request).to_bytes(4, "big")], numbers)
            self._requests.sendall(request)

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


@functools.cache
def _fork_server() -> _ForkServer:
    return _ForkServer()


def _serve_requests(requests: socket.socket) -> None:
    """Fork for each request, and report the process id and the exit code; return in each forked process."""
    wakeup_reader, wakeup_writer = socket.socketpair()
    for end in (wakeup_reader, wakeup_writer):
        end.setblocking(False)
    signal.set_wakeup_fd(wakeup_writer.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([requests, wakeup_reader], [], [])
        if wakeup_reader in ready:
            wakeup_reader.recv(4096)
            for pid in list(running):
                ended_pid, status = os.waitpid(pid, os.WNOHANG)
                if ended_pid:
                    with running.pop(pid) as result:
                        result.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        if requests in ready:
            header, numbers, _, _ = socket.recv_fds(requests, 4, 4)
            if not header:
                os._exit(0)
            decoded = json.loads(_read_exactly(requests, int.from_bytes(header, "big")))
            *streams, answer_number = numbers
            result = socket.socket(fileno=answer_number)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (requests, wakeup_reader, wakeup_writer, result, *running.values()):
                    end.close()
                return _apply_request(decoded, dict(zip(decoded["open"], streams, strict=True)))
            result.sendall(b"%d\n" % pid)
            running[pid] = result
            for number in streams:
                os.close(number)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size and (piece := connection.recv(size - len(content))):
        content += piece
    return content


def _apply_request(request: dict[str, Any], streams: Mapping[int, int]) -> None:
    """Apply the streams, folder, environment, signals and limits of a request."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if number not in streams:
            # As Python does for a closed stream at its start.
            os.close(number)
            setattr(sys, name, None)
            continue
        os.dup2(streams[number], number)
        os.close(streams[number])
        if number == 1 and os.isatty(number):
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if request["own_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for signal_number in request["ignored"]:
        signal.signal(signal_number, signal.SIG_IGN)
    if request["file_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"],) * 2)
    sys.argv = [request["script"] or str(PROGRAM), *request["arguments"]]


def _exit_process(code: object) -> NoReturn:
    """
    End like Python, but without tearing down the imported modules.

    The teardown would copy every page that is shared with the parent, which is two thirds of the work.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # type: ignore[arg-type]
    if isinstance(code, str):
        sys.exit(code)
    os._exit(code if isinstance(code, int) else 0)


def _main() -> NoReturn:
    # As in the installed program: without the folder of the script.
    del sys.path[0]
    for name in _PRELOADED_MODULES:
        __import__(name)
    from queenright.cli import main
    from queenright.cli.command_table import COMMANDS
    from queenright.instrumentation.otlp import preload

    for entry in COMMANDS.values():
        __import__(entry.module)

    preload()
    # Exclude these objects from the collector of the forks, which would copy every page.
    gc.collect()
    gc.freeze()
    _serve_requests(socket.socket(fileno=int(sys.argv[1])))
    try:
        if sys.argv[0] == str(PROGRAM):
            main()
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        _exit_process(error.code)
    _exit_process(0)


if __name__ == "__main__":
    _main()
