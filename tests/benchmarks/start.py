"""How long the command line takes to begin: help of all, and of one command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from tests.benchmarks.row import Row

_PROGRAM = Path(sys.executable).with_name("queenright")
_TIMES = 15
_BUDGET = 0.3


def run() -> list[Row]:
    """Measure wall clock, each a process of its own: the median, on a warm disk."""
    return [
        _row("queenright --help", ("--help",), {}),
        _row("queenright tickets --help", ("tickets", "--help"), {}),
        _row("a key press that is completed", (), {"_QUEENRIGHT_LINE": "queenright ti"}),
    ]


def _row(name: str, words: tuple[str, ...], env: dict[str, str]) -> Row:
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        subprocess.run([_PROGRAM, *words], env=os.environ | env, stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - began)
    seconds = median(taken)
    return Row(name, f"{seconds:.2f} s", f"{_BUDGET} s", seconds <= _BUDGET)
