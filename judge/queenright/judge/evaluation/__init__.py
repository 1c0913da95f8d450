"""Recorded agent runs through the detectors that look at live ones; findings held against an oracle."""

from __future__ import annotations

from queenright.judge.evaluation.recorded import InvalidRunError, read_runs
from queenright.judge.evaluation.replay import Happened, Seen, evaluate_files, evaluate_run, events_of, replay
from queenright.judge.evaluation.score import Score, delays, main, score

__all__ = [
    "Happened",
    "InvalidRunError",
    "Score",
    "Seen",
    "delays",
    "evaluate_files",
    "evaluate_run",
    "events_of",
    "main",
    "read_runs",
    "replay",
    "score",
]
