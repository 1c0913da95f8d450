"""
Recorded runs through the detectors, step by step.

A run becomes the events that its agent would have sent; vital signs and detectors then see
what they would have seen. What an oracle says of a run (``success``, ``reward``, human labels)
is never shown to them.
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
"""Not listed: a sign of how the work goes, which agents that try things out show and get over; no alarm."""


_NO_SIGN: Final = Sign(0.0)


class Seen(NamedTuple):
    """What there was to say after a step: its 0-based index, and all findings then."""

    step: int
    findings: list[Finding]


class Happened(NamedTuple):
    """An event of a recorded run, and when it happened, in seconds."""

    at: float
    event: AgentEvent


def events_of(run: Mapping[str, Any]) -> list[Happened]:
    """
    Return the events of a run, one a step.

    Raises:
        InvalidRunError: if ``run`` has no list of steps, or a step is no object.
    """
    recorded = run.get("steps")
    if not isinstance(recorded, list):
        raise InvalidRunError(f"run {run.get('run_id')!r} has no list of steps; {FORMAT}")
    for index, step in enumerate(recorded):
        if not isinstance(step, Mapping):
            raise InvalidRunError(
                f"run {run.get('run_id')!r}: step {index} is no object but {step!r:.80}; {FORMAT}"
            )
    steps, clock = Steps(recorded), 0.0
    events = []
    for index in range(len(steps)):
        clock = steps.time(index, clock)
        events.append(Happened(clock, steps.event(index, clock)))
    return events


def replay(events: Sequence[Happened], settings: HealthSettings) -> Iterator[Seen]:
    """
    Yield what the detectors say after each step, and before a step that ends a silence.

    After the last step comes what is known because it was the last.
    """
    if not events:
        return
    clock = events[0].at
    v = VitalSigns("agent", "run", clock, settings.loops, settings)
    shortest = shortest_limit(settings)
    due, found = clock + shortest, False
    for index, (at, event) in enumerate(events):
        if due <= at:
            # The silence before this step was there to be seen before it ended.
            findings = _all_findings(v, settings, at)
            yield Seen(index - 1, findings)
            due, found = _next_moment(v, settings, at, shortest), bool(findings)
        clock = at
        v.apply(event, at)
        findings = _all_findings(v, settings, at) if found or due <= at or suspicious(v, settings) else []
        found = bool(findings)
        yield Seen(index, findings)
    last = detect_end_in_llm_error(v)
    if last is not None and settings.acts_on(last.kind):
        yield Seen(len(events) - 1, [last])


def _next_moment(v: VitalSigns, settings: HealthSettings, at: float, shortest: float) -> float:
    """Return when time alone may change what is found; an event puts it off, and never brings it forward."""
    later = [moment for moment in moments(v, settings, _NO_SIGN) if moment > at]
    return min([*later, max(at, v.last_activity) + shortest])


def _all_findings(v: VitalSigns, settings: HealthSettings, now: float) -> list[Finding]:
    return [*detect(v, settings, now), *detect_shadow(v, settings, now)]


def evaluate_run(run: Mapping[str, Any], settings: HealthSettings) -> dict[str, Any]:
    """
    Return what the detectors find in one run.

    A finding is listed when it is first seen and again when it gets worse; ``step`` is
    the 0-based index of the step after which it was known.

    Raises:
        InvalidRunError: if ``run`` has no list of steps, or a step is no object.
    """
    found: list[dict[str, Any]] = []
    worst: dict[FindingKind, int] = {}
    for step, findings in replay(events_of(run), settings):
        for finding in findings:
            if finding.kind in NO_ALARM or (finding.shadow and finding.kind not in settings.detectors):
                continue  # what is on trial by default is asked for
            if finding.severity.rank <= worst.get(finding.kind, -1):
                continue
            worst[finding.kind] = finding.severity.rank
            found.append(_listed(finding, step))
    return {"dataset": run.get("dataset"), "run_id": run.get("run_id"), "findings": found}


def evaluate_files(paths: Iterable[Path], settings: HealthSettings) -> Iterator[dict[str, Any]]:
    """
    Yield what is found in every run of the files, in their order.

    Raises:
        InvalidRunError: at a line that is no recorded run.
        OSError: for a file that cannot be read.
    """
    for run in read_runs(paths):
        yield evaluate_run(run, settings)


def _listed(finding: Finding, step: int) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "step": step,
        "evidence": finding.evidence,
    } | ({"shadow": True} if finding.shadow else {})
