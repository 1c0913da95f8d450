"""Replay recorded agent runs through the detectors of the live service."""

from __future__ import annotations

from queenright.judge.evaluation.recorded_runs import InvalidRunError, read_runs, recorded_run
from queenright.judge.evaluation.run_replay import evaluate_files, evaluate_run, events_of

__all__ = [
    "InvalidRunError",
    "evaluate_files",
    "evaluate_run",
    "events_of",
    "read_runs",
    "recorded_run",
]
