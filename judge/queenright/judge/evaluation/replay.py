"""
Replay recorded runs through the detectors, step by step.

A run becomes the events that its agent would have sent, so the detectors see what they would have seen live.
They never see an oracle's labels (``success``, ``reward``, human labels).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from queenright.health.deadlines import Sign, moments, shortest_limit
from queenright.health.detectors import detect, detect_end_in_llm_error, detect_shadow, suspicious
from queenright.health.findings import Finding, FindingKind
from queenright.health.settings import HealthSettings
from queenright.health.vitals import VitalSigns
from queenright.judge.evaluation.events import Steps
from queenright.judge.evaluation.recorded import FORMAT, InvalidRunError, read_runs
from queenright.runtime.events import AgentEvent

NO_ALARM: Final = frozenset({FindingKind.ERROR_RATE})
"""Not listed: agents that experiment show it and recover from it."""

_UNKNOWN_SIGN: Final = Sign(0.0)


class StepFindings(NamedTuple):
    """All findings after a step, with its 0-based index."""

    step: int
    findings: list[Finding]


class TimedEvent(NamedTuple):
    """An event of a recorded run and its time in seconds."""

    at: float
    event: AgentEvent


def events_of(run: Mapping[str, Any]) -> list[TimedEvent]:
    """
    Return the events of a run, one per step.

    Raises:
        InvalidRunError: ``run`` has no list of steps, or a step is not an object.
    """
    recorded = run.get("steps")
    if not isinstance(recorded, list):
        raise InvalidRunError(f"run {run.get('run_id')!r} has no list of steps; {FORMAT}")
    for index, step in enumerate(recorded):
        if not isinstance(step, Mapping):
            raise InvalidRunError(
                f"run {run.get('run_id')!r}: step {index} is not an object: {step!r:.80}; {FORMAT}"
            )
    steps, clock = Steps(recorded), 0.0
    events = []
    for index in range(len(steps)):
        clock = steps.time(index, clock)
        events.append(TimedEvent(clock, steps.event(index, clock)))
    return events


def replay(events: Sequence[TimedEvent], settings: HealthSettings) -> Iterator[StepFindings]:
    """
    Yield the findings after each step, and before a step that ends a silence.

    Findings that depend on a step being the last one come at the end.
    """
    if not events:
        return
    clock = events[0].at
    v = VitalSigns("agent", "run", clock, settings.loops, settings)
    shortest = shortest_limit(settings)
    due, has_findings = clock + shortest, False
    for index, (at, event) in enumerate(events):
        if due <= at:
            findings = _all_findings(v, settings, at)
            yield StepFindings(index - 1, findings)
            due, has_findings = _next_moment(v, settings, at, shortest), bool(findings)
        clock = at
        v.apply(event, at)
        findings = (
            _all_findings(v, settings, at) if has_findings or due <= at or suspicious(v, settings) else []
        )
        has_findings = bool(findings)
        yield StepFindings(index, findings)
    last = detect_end_in_llm_error(v)
    if last is not None and settings.acts_on(last.kind):
        yield StepFindings(len(events) - 1, [last])


def _next_moment(v: VitalSigns, settings: HealthSettings, at: float, shortest: float) -> float:
    """Return when time alone may change the findings; an event can only postpone it."""
    later = [moment for moment in moments(v, settings, _UNKNOWN_SIGN) if moment > at]
    return min([*later, max(at, v.last_activity) + shortest])


def _all_findings(v: VitalSigns, settings: HealthSettings, now: float) -> list[Finding]:
    return [*detect(v, settings, now), *detect_shadow(v, settings, now)]


def evaluate_run(run: Mapping[str, Any], settings: HealthSettings) -> dict[str, Any]:
    """
    Return the findings in one run.

    A finding is listed when it appears and again when its severity rises; ``step`` is the 0-based index of
    the step after which it was known.

    Raises:
        InvalidRunError: ``run`` has no list of steps, or a step is not an object.
    """
    listed: list[dict[str, Any]] = []
    worst: dict[FindingKind, int] = {}
    for step, findings in replay(events_of(run), settings):
        for finding in findings:
            if finding.kind in NO_ALARM or (finding.shadow and finding.kind not in settings.detectors):
                continue  # a shadow detector counts only if it is set
            if finding.severity.rank <= worst.get(finding.kind, -1):
                continue
            worst[finding.kind] = finding.severity.rank
            listed.append(_row(finding, step))
    return {"dataset": run.get("dataset"), "run_id": run.get("run_id"), "findings": listed}


def evaluate_files(paths: Iterable[Path], settings: HealthSettings) -> Iterator[dict[str, Any]]:
    """
    Yield the findings of every run in the files, in order.

    Raises:
        InvalidRunError: A line is not a recorded run.
        OSError: A file cannot be read.
    """
    for run in read_runs(paths):
        yield evaluate_run(run, settings)


def _row(finding: Finding, step: int) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "step": step,
        "evidence": finding.evidence,
    } | ({"shadow": True} if finding.shadow else {})
