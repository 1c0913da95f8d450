"""How the findings in recorded runs hold against what an oracle says of the runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.judge.evaluation.oracle import first_repeated_call, group_of
from queenright.judge.evaluation.recorded import InvalidRunError, read_runs
from queenright.judge.evaluation.replay import evaluate_run

LOOPING: Final = frozenset({FindingKind.DOOM_LOOP.value, FindingKind.ZERO_PROGRESS.value})
"""Findings about repeats and want of progress."""

_SEVERE: Final = frozenset({Severity.HIGH.value, Severity.CRITICAL.value})


@dataclass(frozen=True, slots=True)
class Score:
    """How many runs of one kind got any finding, a loop or zero progress, and a high or critical one."""

    group: str
    runs: int
    any: int
    loops: int
    severe: int


def score(paths: Iterable[Path], settings: HealthSettings) -> list[Score]:
    """Hold the findings in recorded runs against what an oracle says of the runs; see `oracle.group_of`."""
    groups: dict[str, list[int]] = {}
    for run in read_runs(paths):
        found = evaluate_run(run, settings)["findings"]
        counts = groups.setdefault(group_of(run), [0, 0, 0, 0])
        counts[0] += 1
        counts[1] += bool(found)
        counts[2] += any(finding["kind"] in LOOPING for finding in found)
        counts[3] += any(finding["severity"] in _SEVERE for finding in found)
    return [Score(group, *counts) for group, counts in sorted(groups.items())]


def delays(paths: Iterable[Path], settings: HealthSettings) -> list[int]:
    """Return the steps from the first repeated call to a loop or zero progress, a run that has both."""
    result = []
    for run in read_runs(paths):
        first = first_repeated_call(run["steps"])
        found = [f["step"] for f in evaluate_run(run, settings)["findings"] if f["kind"] in LOOPING]
        if found and first is not None:
            result.append(found[0] - first)
    return result


def main(arguments: list[str]) -> int:
    """Print how the detectors do on the recorded runs of a folder: ``--score DIR``."""
    if len(arguments) != 2 or arguments[0] != "--score":
        print("usage: python -m queenright.judge.evaluation --score DIR", file=sys.stderr)
        return 2
    paths = sorted(Path(arguments[1]).glob("*.jsonl*"))
    if not paths:
        print(f"no recorded runs (*.jsonl, *.jsonl.gz) in {arguments[1]}", file=sys.stderr)
        return 1
    settings = HealthSettings()
    try:
        lines, waited = score(paths, settings), delays(paths, settings)
    except InvalidRunError as refused:
        print(refused, file=sys.stderr)
        return 1
    print(f"{'runs':70}{'n':>6}{'any':>6}{'loop':>6}{'severe':>8}")
    for line in lines:
        print(f"{line.group:70}{line.runs:6}{line.any:6}{line.loops:6}{line.severe:8}")
    if waited:
        print(f"median delay after the first repeated call: {median(waited):.0f} steps ({len(waited)} runs)")
    return 0
