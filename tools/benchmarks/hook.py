"""The duration of a `queenright hook` process, with and without a service."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from tools.benchmarks.row import Row
from tools.benchmarks.start import children_time, serve

_PROGRAM = Path(sys.executable).with_name("queenright")
_REPETITIONS = 41
_BUDGET = 0.060
_CALL = (
    b'{"hook_event_name": "PostToolUse", "session_id": "s-1", "cwd": "/home/ada/honey", "tool_name": "Bash",'
    b' "tool_use_id": "t-1", "tool_input": {"command": "ls"}, "tool_response": {"stdout": "notes.txt"}}'
)


def run() -> list[Row]:
    """
    Return the medians on a warm disk, measured alternately with an empty Python process.

    The budget is for wall-clock time. CPU time depends less on the other load of the machine.
    """
    bare = [sys.executable, "-c", "pass"]
    with serve() as service:
        hook_times = _measure([str(_PROGRAM), "hook", "claude-code", "--otlp-url", service.otlp], bare)
    unavailable = _measure([str(_PROGRAM), "hook", "codex", "--otlp-url", "http://127.0.0.1:1"], bare)
    return [
        _make_row("queenright hook, answered by the service", *hook_times),
        _make_row("queenright hook, the service is unavailable", *unavailable),
    ]


def _make_row(name: str, wall: float, processor: float, bare: float) -> Row:
    cpu_text = f"{processor * 1000:.0f} ms of CPU time, Python alone {bare * 1000:.0f} ms"
    return Row(name, f"{wall * 1000:.0f} ms ({cpu_text})", f"{_BUDGET * 1000:.0f} ms", wall <= _BUDGET)


def _measure(command: list[str], bare: list[str]) -> tuple[float, float, float]:
    """Return wall-clock and CPU seconds of a command, and wall-clock seconds of ``bare``."""
    walls, processors, bare_walls = [], [], []
    for _ in range(_REPETITIONS):
        wall, processor = _run(command)
        walls.append(wall)
        processors.append(processor)
        bare_walls.append(_run(bare)[0])
    return median(walls), median(processors), median(bare_walls)


def _run(command: list[str]) -> tuple[float, float]:
    start, before = time.perf_counter(), children_time()
    subprocess.run(command, input=_CALL, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start, children_time() - before
