"""A worker's health according to the event log, and the events that are missing from the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Severity
from queenright.health.monitoring.monitor import WorkerHealth, health_event
from queenright.runtime.events import AgentEvent, EventType

HEALTH_EVENTS: Final = frozenset(
    {EventType.HEALTH_STATE_CHANGED, EventType.FINDING_OPENED, EventType.FINDING_CLEARED}
)
"""The types of events about a worker's health."""


@dataclass(slots=True)
class LoggedHealth:
    """The state and findings of a worker according to the log, updated by each event."""

    state: HealthState = HealthState.HEALTHY
    findings: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The findings by kind, as JSON values."""
    since: float | None = None
    """When the state was logged, or None if no state was."""

    def apply(self, event: AgentEvent) -> None:
        """Apply an event of a type in ``HEALTH_EVENTS``. Unreadable values are ignored."""
        kind = str(event.data.get("kind"))
        if event.type is EventType.FINDING_OPENED:
            self.findings[kind] = event.data
        elif event.type is EventType.FINDING_CLEARED:
            self.findings.pop(kind, None)
        elif event.data.get("to") in list(HealthState):
            self.state, self.since = HealthState(event.data["to"]), event.time
            findings = event.data.get("findings")
            if isinstance(findings, list):
                self.findings = {
                    str(finding["kind"]): finding
                    for finding in findings
                    if isinstance(finding, dict) and "kind" in finding
                }


def missing_health_events(worker: WorkerHealth, logged_health: LoggedHealth, now: float) -> list[AgentEvent]:
    """
    Return the events that bring the log up to date with a worker's health.

    They are missing if the service was killed after it logged a worker's event, but before it logged the
    resulting health events.
    """
    events, v = list[AgentEvent](), worker.vitals
    remaining = dict(logged_health.findings)
    for finding in worker.findings:
        previous = remaining.pop(finding.kind.value, None)
        if (
            previous is None
            or finding.severity.rank > _get_severity_rank(previous)
            or (finding.ticket and not previous.get("ticket"))
        ):
            events.append(health_event(EventType.FINDING_OPENED, v, now, finding.to_dict()))
    events += [
        health_event(EventType.FINDING_CLEARED, v, now, dict(finding)) for finding in remaining.values()
    ]
    if worker.state is not logged_health.state:
        change = {
            "from": logged_health.state.value,
            "to": worker.state.value,
            "reason": worker.reason,
            "findings": [finding.to_dict() for finding in worker.findings],
        }
        events.append(health_event(EventType.HEALTH_STATE_CHANGED, v, now, change))
    return events


def _get_severity_rank(finding: Mapping[str, Any]) -> int:
    severity = finding.get("severity")
    return Severity(severity).rank if severity in list(Severity) else -1
