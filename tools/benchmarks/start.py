"""The start-up time of the command line: help, help of a command, and requests to a service."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from queenright.server.ops.sockets import find_free_port
from tools.benchmarks.row import Row

PROGRAM = Path(sys.executable).with_name("queenright")
_REPETITIONS = 15
_BUDGET = 0.3
_CPU_BUDGET = 0.5
_SERVICE_COMMANDS = (("list",), ("tickets",), ("breakers",))


def run() -> list[Row]:
    """
    Return the median of each command, run as a separate process on a warm disk.

    Help is measured in wall-clock time. Commands that call a service are measured in CPU time, which
    excludes the service.
    """
    with serve() as service:
        words = [(*command, "--url", service.url) for command in _SERVICE_COMMANDS]
        service_commands = [_make_cpu_row(f"queenright {' '.join(word[:-2])}", word) for word in words]
    return [
        _make_row("queenright --help", ("--help",), {}),
        _make_row("queenright tickets --help", ("tickets", "--help"), {}),
        _make_row("shell completion of a name", (), {"_QUEENRIGHT_LINE": "queenright ti"}),
        *service_commands,
    ]


def _make_row(name: str, words: tuple[str, ...], env: dict[str, str]) -> Row:
    durations = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        subprocess.run([PROGRAM, *words], env=os.environ | env, stdout=subprocess.DEVNULL, check=True)
        durations.append(time.perf_counter() - start)
    seconds = median(durations)
    return Row(name, f"{seconds:.2f} s", f"{_BUDGET} s", seconds <= _BUDGET)


def _make_cpu_row(name: str, words: tuple[str, ...]) -> Row:
    durations = []
    for _ in range(_REPETITIONS):
        before = children_time()
        subprocess.run([PROGRAM, *words], stdout=subprocess.DEVNULL, check=True)
        durations.append(children_time() - before)
    seconds = median(durations)
    return Row(f"{name}, CPU", f"{seconds:.2f} s", f"{_CPU_BUDGET} s", seconds <= _CPU_BUDGET)


def children_time() -> float:
    """Return the CPU seconds of ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def process_time(pid: int) -> float:
    """Return the CPU seconds of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Service(NamedTuple):
    """A running service: the URLs of its API and its telemetry port, and its process id."""

    url: str
    otlp: str
    pid: int


@contextmanager
def serve(*arguments: str, settings: str = "") -> Iterator[Service]:
    """Run a service without workers: ``queenright serve``, or another command with these arguments."""
    port, otlp = (
        find_free_port("127.0.0.1", 0, what="the benchmark", option=name)
        for name in ("--port", "--otlp-port")
    )
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        words = [*(arguments or ["serve"]), f"--storage={folder}", f"--port={port}", f"--otlp-port={otlp}"]
        Path(folder, "queenright.yaml").write_text(settings)
        service = subprocess.Popen(
            [PROGRAM, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait_for(f"{url}/healthz")
            yield Service(url, f"http://127.0.0.1:{otlp}", service.pid)
        finally:
            service.terminate()
            service.wait()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
