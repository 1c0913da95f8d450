"""How long a coding agent waits for `queenright hook`: the whole process, answered and unanswered."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from tests.benchmarks.row import Row
from tests.benchmarks.start import serve

_PROGRAM = Path(sys.executable).with_name("queenright")
_TIMES = 41
_BUDGET = 0.060
_CALL = (
    b'{"hook_event_name": "PostToolUse", "session_id": "s-1", "cwd": "/home/ada/honey", "tool_name": "Bash",'
    b' "tool_use_id": "t-1", "tool_input": {"command": "ls"}, "tool_response": {"stdout": "notes.txt"}}'
)


def run() -> list[Row]:
    """Measure the process by wall clock, on a warm disk: the median, beside that of an empty Python."""
    with serve() as (_, otlp):
        answered = _median([str(_PROGRAM), "hook", "claude-code", "--otlp-url", otlp])
    away = _median([str(_PROGRAM), "hook", "codex", "--otlp-url", "http://127.0.0.1:1"])
    bare = _median([sys.executable, "-c", "pass"])
    return [
        _row("queenright hook, answered by the service", answered, bare),
        _row("queenright hook, the service is away", away, bare),
    ]


def _row(name: str, seconds: float, bare: float) -> Row:
    measured = f"{seconds * 1000:.0f} ms (Python alone {bare * 1000:.0f})"
    return Row(name, measured, f"{_BUDGET * 1000:.0f} ms", seconds <= _BUDGET)


def _median(command: list[str]) -> float:
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        subprocess.run(command, input=_CALL, stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - began)
    return median(taken)
