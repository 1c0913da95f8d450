"""
Guards of the nodes that run here: health's own detectors, looking over a node's shoulder while it works.

What the monitor would write a ticket about is said to the model first: a loop that ends by itself needs
nobody to be woken. One that goes on to the last band is stopped where it stands, so that it costs nothing
while the judge looks at it and the ladder is climbed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queenright.health.detectors import detect, suspicious
from queenright.health.findings import FindingKind, Severity, worst
from queenright.health.settings import HealthSettings
from queenright.health.vitals import VitalSigns
from queenright.runtime.events import AgentEvent
from queenright.runtime.nodes.guard import GuardFactory, GuardFinding
from queenright.runtime.nodes.reporting import Origin

GUARDED: Final = frozenset(
    {
        FindingKind.DOOM_LOOP,
        FindingKind.ERROR_STREAK,
        FindingKind.NO_TOOL_CALLS,
        FindingKind.RETRY_STORM,
        FindingKind.ZERO_PROGRESS,
    }
)
"""What a model can do something about. Silence is the monitor's affair, a failing provider nobody's fault."""


def health_guard(settings: HealthSettings, *, hold_seconds: float = 0.0) -> GuardFactory:
    """
    Return what makes a guard for each visit of a node.

    A finding is said to the model when it is ``medium``, and again when it is ``high``; ``critical`` stops
    the visit.

    Args:
        settings: The thresholds.
        hold_seconds: How long a visit that is stopped waits for who watches it before it ends.
    """

    def make(origin: Origin, node_id: str) -> HealthGuard:
        return HealthGuard(settings, origin.agent_id, origin.session_id, hold_seconds)

    return make


def ladder_seconds(settings: HealthSettings) -> float:
    """Return how long the judge, and then every rung of the ladder, may take with one worker."""
    judge, acting = settings.judge, settings.intervention
    judged = judge.start_grace_seconds + judge.interval_seconds + judge.triage_timeout_seconds
    if not acting.enabled or acting.is_dry("nudge"):
        return judged
    nudges = acting.nudge.max_attempts * acting.nudge.interval_seconds if acting.nudge.enabled else 0.0
    return judged + acting.quiet_seconds + nudges + acting.escalation.timeout_seconds


class HealthGuard:
    """
    The guard of one visit.

    Time is read from the events, so that a visit which is taken up after a kill, and whose events are shown
    again, gets the verdict that it would have got.
    """

    def __init__(
        self, settings: HealthSettings, agent_id: str, session_id: str, hold_seconds: float = 0.0
    ) -> None:
        self._settings = settings
        self._agent_id = agent_id
        self._session_id = session_id
        self.hold_seconds = hold_seconds
        self._vitals: VitalSigns | None = None

    def observe(self, event: AgentEvent) -> GuardFinding | None:
        """Take in one event of the visit, and return the worst of what the detectors say after it."""
        vitals = self._vitals
        if vitals is None:
            vitals = self._vitals = VitalSigns(
                self._agent_id, self._session_id, event.time, self._settings.loops
            )
        at = max(event.time, vitals.last_activity)
        # A visit that a restart interrupted is still the same visit: its counts go on.
        vitals.apply(replace(event, incarnation_id=""), at)
        if not suspicious(vitals, self._settings):
            return None
        found = worst(
            finding
            for finding in detect(vitals, self._settings, at)
            if finding.kind in GUARDED and finding.severity.rank >= Severity.MEDIUM.rank
        )
        if found is None:
            return None
        return GuardFinding(
            kind=found.kind.value,
            evidence=found.evidence,
            stop=found.severity is Severity.CRITICAL,
            level=found.severity.value,
            hold_seconds=self.hold_seconds,
        )

    def reset(self) -> None:
        """Begin again with nothing counted."""
        self._vitals = None
