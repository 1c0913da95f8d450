"""Recorded agent runs, replayed through the detectors of the live service."""

from __future__ import annotations

from queenright.judge.evaluation.recorded import InvalidRunError, read_runs
from queenright.judge.evaluation.replay import (
    StepFindings,
    TimedEvent,
    evaluate_files,
    evaluate_run,
    events_of,
    replay,
)

__all__ = [
    "InvalidRunError",
    "StepFindings",
    "TimedEvent",
    "evaluate_files",
    "evaluate_run",
    "events_of",
    "read_runs",
    "replay",
]
