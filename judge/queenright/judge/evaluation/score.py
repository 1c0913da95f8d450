"""How the findings in recorded runs hold against what an oracle says of the runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, cast

from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.judge.evaluation.recorded import read_runs
from queenright.judge.evaluation.replay import evaluate_run


@dataclass(frozen=True, slots=True)
class Score:
    """How many runs of one kind got any finding, a loop or zero progress, and a high or critical one."""

    group: str
    runs: int
    any: int
    loops: int
    severe: int


_LOOPING: Final = frozenset({FindingKind.DOOM_LOOP.value, FindingKind.ZERO_PROGRESS.value})
_SEVERE: Final = frozenset({Severity.HIGH.value, Severity.CRITICAL.value})
_TURNS_WITHOUT_GAIN: Final = 5


def score(paths: Iterable[Path], settings: HealthSettings) -> list[Score]:
    """
    Hold the findings in recorded runs against what an oracle says of the runs.

    Runs are grouped by data set and outcome; of InterCode, unsolved runs with five turns or
    more without a gain are a group, and so are RepairAgent's with three equivalent actions in a row.
    """
    groups: dict[str, list[int]] = {}
    for run in read_runs(paths):
        found = evaluate_run(run, settings)["findings"]
        counts = groups.setdefault(_group(run), [0, 0, 0, 0])
        counts[0] += 1
        counts[1] += bool(found)
        counts[2] += any(finding["kind"] in _LOOPING for finding in found)
        counts[3] += any(finding["severity"] in _SEVERE for finding in found)
    return [Score(group, *counts) for group, counts in sorted(groups.items())]


def delays(paths: Iterable[Path], settings: HealthSettings) -> list[int]:
    """Return the steps from the first repeated call to a loop or zero progress, a run that has both."""
    result = []
    for run in read_runs(paths):
        seen: set[tuple[Any, ...]] = set()
        first = None
        for index, step in enumerate(run["steps"]):
            call = (step.get("name"), step.get("args_hash"), step.get("result_hash"))
            if step.get("kind") == "tool" and call in seen:
                first = index
                break
            seen.add(call)
        found = [f["step"] for f in evaluate_run(run, settings)["findings"] if f["kind"] in _LOOPING]
        if found and first is not None:
            result.append(found[0] - first)
    return result


def _group(run: Mapping[str, Any]) -> str:
    success = {True: "solved", False: "unsolved"}.get(cast("bool", run.get("success")), "outcome unknown")
    dataset = str(run.get("dataset"))
    if dataset.startswith("intercode"):
        stuck = success == "unsolved" and _without_gain(run["steps"]) >= _TURNS_WITHOUT_GAIN
        return f"{dataset}, {'zero progress' if stuck else success}"
    if run.get("agent") == "repairagent" and _equivalent_in_a_row(run["steps"]) >= 3:
        return f"{dataset} repairagent, three equivalent actions in a row"
    return f"{dataset} {run.get('agent')}, {success}"


def _without_gain(steps: Iterable[Mapping[str, Any]]) -> int:
    """Return the most turns in a row in which the oracle's reward did not rise."""
    best, without, most = float("-inf"), 0, 0
    for step in steps:
        reward = float(step.get("reward") or 0)
        without = 0 if reward > best else without + 1
        best, most = max(best, reward), max(most, without)
    return most


def _equivalent_in_a_row(steps: Iterable[Mapping[str, Any]]) -> int:
    """Return the most actions in a row that people called repetitions of one another."""
    row, most = 1, 1
    for step in steps:
        row = row + 1 if step.get("rel") == "repetition" else 1
        most = max(most, row)
    return most


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
    print(f"{'runs':70}{'n':>6}{'any':>6}{'loop':>6}{'severe':>8}")
    for line in score(paths, settings):
        print(f"{line.group:70}{line.runs:6}{line.any:6}{line.loops:6}{line.severe:8}")
    waited = delays(paths, settings)
    if waited:
        print(f"median delay after the first repeated call: {median(waited):.0f} steps ({len(waited)} runs)")
    return 0
