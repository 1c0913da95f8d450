"""
Replay the events of one session through the detectors.

The live monitor runs the same detectors on the same vital signs. ``queenright evaluate`` and the API replay a
session that has ended, or the events of a running session so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from queenright.health.detection.deadlines import ProcessSign, find_shortest_limit, list_change_times
from queenright.health.detection.detectors import (
    detect,
    detect_end_in_llm_error,
    detect_shadow,
    is_suspicious,
)
from queenright.health.detection.health_state import HealthState, determine_state
from queenright.health.findings import Finding, FindingKind
from queenright.health.settings import HealthSettings
from queenright.health.vitals.vital_signs import ABOUT_WORKERS, WORKER_EVENTS, VitalSigns
from queenright.runtime.events import AgentEvent, EventType

REPLAYED_EVENTS: Final = (WORKER_EVENTS | ABOUT_WORKERS) - {EventType.RECOVERY_COMPLETED}
"""
The types of logged events that are replayed. A completed recovery concerns another session, so it is left
out.
"""

_UNKNOWN_PROCESS: Final = ProcessSign(0.0)


class TimedEvent(NamedTuple):
    """An event of a session and its time, in seconds since the epoch."""

    at: float
    event: AgentEvent


class Moment(NamedTuple):
    """The findings after an event, or at a time between two events."""

    step: int
    """The 0-based index of the event."""
    at: float
    findings: list[Finding]
    vitals: VitalSigns
    """The vital signs at this moment. The object changes when the replay continues."""


@dataclass(slots=True, kw_only=True)
class FindingOnset:
    """A finding that appeared or became more severe. Times are in seconds since the epoch."""

    finding: Finding
    at: float
    step: int
    cleared_at: float | None = None


def make_monotonic(events: Iterable[AgentEvent]) -> list[TimedEvent]:
    """Return logged events with times that never decrease."""
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
        until: The time until which the session was observed. If None, the session ended with its last event,
            and a finding about its end may come last.
    """
    if not events:
        return
    clock = events[0].at
    v = VitalSigns("agent", "run", clock, settings)
    shortest = find_shortest_limit(settings)
    next_due, has_findings = clock + shortest, False
    for index, (at, event) in enumerate(events):
        if next_due <= at:
            for moment in _list_times_between(v, settings, clock, at):
                findings = _list_findings(v, settings, moment)
                has_findings = bool(findings)
                yield Moment(index - 1, moment, findings, v)
            next_due = _find_next_time(v, settings, at, shortest)
        clock = at
        v.apply(event, at)
        is_examined = has_findings or next_due <= at or is_suspicious(v, settings)
        findings = _list_findings(v, settings, at) if is_examined or v.ended_at is not None else []
        has_findings = bool(findings)
        yield Moment(index, at, findings, v)
    last = len(events) - 1
    if until is not None:
        for moment in _list_times_between(v, settings, clock, until):
            yield Moment(last, moment, _list_findings(v, settings, moment), v)
        return
    end = detect_end_in_llm_error(v)
    if end is not None and settings.acts_on(end.kind):
        yield Moment(last, clock, [end], v)


def list_onsets(moments: Iterable[Moment]) -> list[FindingOnset]:
    """Return an onset for each finding that appears or becomes more severe in a replay, oldest first."""
    onsets: list[FindingOnset] = []
    active: dict[tuple[FindingKind, bool], list[FindingOnset]] = {}
    for moment in moments:
        current = {(finding.kind, finding.shadow): finding for finding in moment.findings}
        for key in active.keys() - current.keys():
            for onset in active.pop(key):
                onset.cleared_at = moment.at
        for key, finding in current.items():
            active_onsets = active.setdefault(key, [])
            if not active_onsets or finding.severity.rank > active_onsets[-1].finding.severity.rank:
                active_onsets.append(FindingOnset(finding=finding, at=moment.at, step=moment.step))
                onsets.append(active_onsets[-1])
    return onsets


def determine_state_at(moment: Moment, settings: HealthSettings) -> HealthState:
    """Return the health state at a moment."""
    findings = [finding for finding in moment.findings if not finding.shadow]
    return determine_state(moment.vitals, findings, settings, moment.at)


def _list_times_between(v: VitalSigns, settings: HealthSettings, after: float, until: float) -> list[float]:
    """
    Return the times at which findings change without an event, and ``until``. Empty if there are no such
    times.
    """
    times = {at for at in list_change_times(v, settings, _UNKNOWN_PROCESS) if after < at <= until}
    return sorted(times | {until}) if times else []


def _find_next_time(v: VitalSigns, settings: HealthSettings, at: float, shortest: float) -> float:
    """Return the next time at which findings may change without an event. Events only postpone it."""
    later = [moment for moment in list_change_times(v, settings, _UNKNOWN_PROCESS) if moment > at]
    return min([*later, max(at, v.last_activity) + shortest])


def _list_findings(v: VitalSigns, settings: HealthSettings, now: float) -> list[Finding]:
    return [*detect(v, settings, now), *detect_shadow(v, settings, now)]
