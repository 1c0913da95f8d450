"""Recorded agent runs through the same detectors as live ones, and how the findings hold against an oracle."""

from __future__ import annotations

from queenright.judge.evaluation.recorded import RunRefused, read_runs
from queenright.judge.evaluation.replay import Seen, evaluate_files, evaluate_run, replay
from queenright.judge.evaluation.score import Score, delays, main, score

__all__ = [
    "RunRefused",
    "Score",
    "Seen",
    "delays",
    "evaluate_files",
    "evaluate_run",
    "main",
    "read_runs",
    "replay",
    "score",
]
