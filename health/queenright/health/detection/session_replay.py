"""
Replay the events of one session through the detectors, one by one.

The live monitor runs the same detectors on the same vital signs. ``queenright evaluate`` and the API replay a
session that is over, or its events so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from queenright.health.detection.deadlines import ProcessSign, moments, shortest_limit
from queenright.health.detection.detectors import (
    detect,
    detect_end_in_llm_error,
    detect_shadow,
    is_suspicious,
)
from queenright.health.detection.health_state import HealthState, health_state
from queenright.health.findings import Finding, FindingKind
from queenright.health.settings import HealthSettings
from queenright.health.vitals.vital_signs import ABOUT_WORKERS, WORKER_EVENTS, VitalSigns
from queenright.runtime.events import AgentEvent, EventType

REPLAYED_EVENTS: Final = (WORKER_EVENTS | ABOUT_WORKERS) - {EventType.RECOVERY_COMPLETED}
"""Types of logged events that are replayed. A completed recovery is about another session."""

_UNKNOWN_PROCESS: Final = ProcessSign(0.0)


class TimedEvent(NamedTuple):
    """An event of a session and its time in seconds."""

    at: float
    event: AgentEvent


class Moment(NamedTuple):
    """All findings after an event, or at a time before the next event."""

    step: int
    """The 0-based index of the event."""
    at: float
    findings: list[Finding]
    vitals: VitalSigns
    """Valid until the next moment."""


@dataclass(slots=True, kw_only=True)
class FindingOnset:
    """A finding that appeared, or became more severe. Times in seconds."""

    finding: Finding
    at: float
    step: int
    cleared_at: float | None = None


def make_monotonic(events: Iterable[AgentEvent]) -> list[TimedEvent]:
    """Return logged events with times that never go back."""
    timed_events, clock = [], 0.0
    for event in events:
        clock = max(clock, event.time)
        timed_events.append(TimedEvent(clock, event))
    return timed_events


def replay(
    events: Sequence[TimedEvent], settings: HealthSettings, *, until: float | None = None
) -> Iterator[Moment]:
    """
    Yield the findings after each event, and at each time between events at which a detector can fire.

    Args:
        events: The events of one session, oldest first.
        settings: The thresholds.
        until: The session was watched until then. Without it, the session is over with its last event, and
            findings that depend on that come at the end.
    """
    if not events:
        return
    clock = events[0].at
    v = VitalSigns("agent", "run", clock, settings)
    shortest = shortest_limit(settings)
    next_due, has_findings = clock + shortest, False
    for index, (at, event) in enumerate(events):
        if next_due <= at:
            for moment in _moments_between(v, settings, clock, at):
                findings = _all_findings(v, settings, moment)
                has_findings = bool(findings)
                yield Moment(index - 1, moment, findings, v)
            next_due = _next_moment(v, settings, at, shortest)
        clock = at
        v.apply(event, at)
        is_examined = has_findings or next_due <= at or is_suspicious(v, settings)
        findings = _all_findings(v, settings, at) if is_examined or v.ended_at is not None else []
        has_findings = bool(findings)
        yield Moment(index, at, findings, v)
    last = len(events) - 1
    if until is not None:
        for moment in _moments_between(v, settings, clock, until):
            yield Moment(last, moment, _all_findings(v, settings, moment), v)
        return
    end = detect_end_in_llm_error(v)
    if end is not None and settings.acts_on(end.kind):
        yield Moment(last, clock, [end], v)


def list_onsets(moments_of_run: Iterable[Moment]) -> list[FindingOnset]:
    """Return the findings of a replay when they appear and again when they get worse, oldest first."""
    rows: list[FindingOnset] = []
    active: dict[tuple[FindingKind, bool], list[FindingOnset]] = {}
    for moment in moments_of_run:
        now = {(finding.kind, finding.shadow): finding for finding in moment.findings}
        for key in active.keys() - now.keys():
            for row in active.pop(key):
                row.cleared_at = moment.at
        for key, finding in now.items():
            times = active.setdefault(key, [])
            if not times or finding.severity.rank > times[-1].finding.severity.rank:
                times.append(FindingOnset(finding=finding, at=moment.at, step=moment.step))
                rows.append(times[-1])
    return rows


def state_at(moment: Moment, settings: HealthSettings) -> HealthState:
    """Return the health state at a moment."""
    findings = [finding for finding in moment.findings if not finding.shadow]
    return health_state(moment.vitals, findings, settings, moment.at)


def _moments_between(v: VitalSigns, settings: HealthSettings, after: float, until: float) -> list[float]:
    """Return the times at which time alone changes the findings, and then ``until``; or nothing."""
    times = {at for at in moments(v, settings, _UNKNOWN_PROCESS) if after < at <= until}
    return sorted(times | {until}) if times else []


def _next_moment(v: VitalSigns, settings: HealthSettings, at: float, shortest: float) -> float:
    """Return when time alone may change the findings; an event can only postpone it."""
    later = [moment for moment in moments(v, settings, _UNKNOWN_PROCESS) if moment > at]
    return min([*later, max(at, v.last_activity) + shortest])


def _all_findings(v: VitalSigns, settings: HealthSettings, now: float) -> list[Finding]:
    return [*detect(v, settings, now), *detect_shadow(v, settings, now)]
