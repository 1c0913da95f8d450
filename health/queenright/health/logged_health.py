"""What the log says of a worker's health, and what it would have to say besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queenright.health.findings import HealthState, Severity
from queenright.health.monitor import WorkerHealth, say
from queenright.runtime.events import AgentEvent, EventType

TELLING: Final = frozenset(
    {EventType.HEALTH_STATE_CHANGED, EventType.FINDING_OPENED, EventType.FINDING_CLEARED}
)
"""What is told of a worker's health."""


@dataclass(slots=True)
class LoggedHealth:
    """State and findings of one worker as the log has them; brought up to date event by event."""

    state: HealthState = HealthState.HEALTHY
    findings: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By kind, as JSON values."""
    since: float | None = None
    """When the state was logged; None if none was."""

    def take(self, event: AgentEvent) -> None:
        """Take in an event of a type in ``TELLING``; what cannot be read in it was not said."""
        kind = str(event.data.get("kind"))
        if event.type is EventType.FINDING_OPENED:
            self.findings[kind] = event.data
        elif event.type is EventType.FINDING_CLEARED:
            self.findings.pop(kind, None)
        elif event.data.get("to") in list(HealthState):
            self.state, self.since = HealthState(event.data["to"]), event.time
            found = event.data.get("findings")
            if isinstance(found, list):
                self.findings = {
                    str(one["kind"]): one for one in found if isinstance(one, dict) and "kind" in one
                }


def missing_health_events(worker: WorkerHealth, told: LoggedHealth, now: float) -> list[AgentEvent]:
    """
    Return what has to be said for the log to say how a worker is.

    What was said last can be lost: the service was killed between what a worker did and its own words on it.
    """
    said, v = list[AgentEvent](), worker.vitals
    gone = dict(told.findings)
    for finding in worker.findings:
        known = gone.pop(finding.kind.value, None)
        if (
            known is None
            or finding.severity.rank > _rank(known)
            or (finding.ticket and not known.get("ticket"))
        ):
            said.append(say(EventType.FINDING_OPENED, v, now, finding.to_dict()))
    said += [say(EventType.FINDING_CLEARED, v, now, dict(one)) for one in gone.values()]
    if worker.state is not told.state:
        change = {
            "from": told.state.value,
            "to": worker.state.value,
            "reason": worker.reason,
            "findings": [finding.to_dict() for finding in worker.findings],
        }
        said.append(say(EventType.HEALTH_STATE_CHANGED, v, now, change))
    return said


def _rank(finding: Mapping[str, Any]) -> int:
    severity = finding.get("severity")
    return Severity(severity).rank if severity in list(Severity) else -1
