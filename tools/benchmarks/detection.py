"""The cost of one recorded step in vital signs and detectors, measured by replay."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from queenright.health.detection.session_replay import replay
from queenright.health.settings import HealthSettings
from queenright.judge.evaluation import read_runs
from queenright.judge.evaluation.run_replay import events_of
from tools.benchmarks.row import Row

_BUDGET_US: Final = 10.0
_ROUNDS: Final = 7
_SYNTHETIC_RUNS: Final = 200
_SYNTHETIC_TURNS: Final = 40


def run() -> list[Row]:
    folder = os.environ.get("QUEENRIGHT_TRACES")
    rows = [
        _measure("synthetic healthy coding runs", [_make_synthetic_run(loops=False)] * _SYNTHETIC_RUNS),
        _measure("synthetic runs in a loop", [_make_synthetic_run(loops=True)] * _SYNTHETIC_RUNS),
    ]
    if folder:
        runs = list(read_runs(sorted(Path(folder).glob("*.jsonl.gz"))))
        rows.append(_measure("recorded runs of QUEENRIGHT_TRACES", runs))
        rows += [
            _measure(
                f"of these {dataset}",
                [recorded_run for recorded_run in runs if recorded_run.get("dataset") == dataset],
            )
            for dataset in sorted({str(recorded_run.get("dataset")) for recorded_run in runs})
        ]
    return rows


def _measure(name: str, runs: Iterable[Mapping[str, Any]]) -> Row:
    settings = HealthSettings()
    runs_events = [events_of(run) for run in runs]
    steps, best_time = sum(map(len, runs_events)), float("inf")
    for _ in range(_ROUNDS):
        start = time.process_time()
        for events in runs_events:
            for _finding in replay(events, settings):
                pass
        best_time = min(best_time, time.process_time() - start)
    cost = best_time / steps * 1e6
    return Row(
        f"detection: CPU of one step, {name} ({steps:,} steps), best of {_ROUNDS}",
        f"{cost:.1f} µs",
        f"≤ {_BUDGET_US:.0f} µs",
        cost <= _BUDGET_US,
    )


def _make_synthetic_run(*, loops: bool) -> dict[str, Any]:
    """Return a run of a coding agent: alternating model turns and tool calls."""
    steps: list[dict[str, Any]] = []
    for turn in range(_SYNTHETIC_TURNS):
        n = 0 if loops else turn
        at = 20.0 * turn
        steps.append({"kind": "llm", "name": "m", "t": at, "tokens": {"in": 900 + 50 * turn, "out": 80}})
        steps.append(
            {
                "kind": "tool",
                "name": "bash",
                "t": at + 2.0,
                "turn": turn,
                "args": {"command": f"grep -n item_{n} src/module_{n}.py"},
                "result_excerpt": f"{n}: item_{n} = {n * 7}",
            }
        )
    return {"dataset": "made up", "run_id": str(loops), "steps": steps}
