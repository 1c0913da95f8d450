"""
Replay recorded runs through the detectors, step by step.

A run is converted to the events that its agent would have sent, so that the detectors get the same input as
live. They never get labels (``success``, ``reward``, human labels).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from queenright.health.detection.session_replay import TimedEvent, replay
from queenright.health.findings import Finding, FindingKind
from queenright.health.settings import HealthSettings
from queenright.judge.evaluation.events import RunSteps, to_finite_number
from queenright.judge.evaluation.recorded_runs import FORMAT, InvalidRunError, read_runs

NO_ALARM: Final = frozenset({FindingKind.ERROR_RATE})
"""The kinds that are left out of the results, because experimenting agents have them and recover."""


def events_of(run: Mapping[str, Any]) -> list[TimedEvent]:
    """
    Return the events of a run, one per step.

    Raises:
        InvalidRunError: ``run`` has no list of steps, or a step is not an object.
    """
    rows = run.get("steps")
    if not isinstance(rows, list):
        raise InvalidRunError(f"run {run.get('run_id')!r} has no list of steps; {FORMAT}")
    for index, step in enumerate(rows):
        if not isinstance(step, Mapping):
            raise InvalidRunError(
                f"run {run.get('run_id')!r}: step {index} is not an object: {step!r:.80}; {FORMAT}"
            )
    steps, clock = RunSteps(rows), 0.0
    events = []
    for index in range(len(steps)):
        clock = steps.time(index, clock)
        events.append(TimedEvent(clock, steps.event(index, clock)))
    return events


def evaluate_run(run: Mapping[str, Any], settings: HealthSettings) -> dict[str, Any]:
    """
    Return the findings in a run.

    A finding is listed when it appears and again when its severity rises; ``step`` is the 0-based index of
    the step after which it was known.

    Raises:
        InvalidRunError: ``run`` has no list of steps, or a step is not an object.
    """
    rows: list[dict[str, Any]] = []
    worst: dict[FindingKind, int] = {}
    until = to_finite_number(run.get("until"))
    for step, _, findings, _ in replay(events_of(run), settings, until=until):
        for finding in findings:
            if finding.kind in NO_ALARM or (finding.shadow and finding.kind not in settings.detectors):
                continue  # a detector in shadow mode counts only if the settings name it
            if finding.severity.rank <= worst.get(finding.kind, -1):
                continue
            worst[finding.kind] = finding.severity.rank
            rows.append(_make_row(finding, step))
    return {"dataset": run.get("dataset"), "run_id": run.get("run_id"), "findings": rows}


def evaluate_files(paths: Iterable[Path], settings: HealthSettings) -> Iterator[dict[str, Any]]:
    """
    Yield the findings of every run in the files, in order.

    Raises:
        InvalidRunError: A line is not a recorded run.
        OSError: A file cannot be read.
    """
    for run in read_runs(paths):
        yield evaluate_run(run, settings)


def _make_row(finding: Finding, step: int) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "step": step,
        "evidence": finding.evidence,
    } | ({"shadow": True} if finding.shadow else {})
