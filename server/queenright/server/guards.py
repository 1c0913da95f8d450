"""
Guards of the nodes that run here: health's own detectors, looking over a node's shoulder while it works.

What the monitor would write a ticket about is said to the model first, and stops the visit when it has gone
too far: a loop that ends by itself needs nobody to be woken.
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
        FindingKind.RETRY_STORM,
        FindingKind.ZERO_PROGRESS,
    }
)
"""What a model can do something about. Silence is the monitor's affair, a failing provider nobody's fault."""


def health_guard(settings: HealthSettings) -> GuardFactory:
    """
    Return what makes a guard for each visit of a node.

    From ``medium`` on a finding is said to the model; ``high`` and ``critical`` stop the visit.
    """

    def make(origin: Origin, node_id: str) -> HealthGuard:
        return HealthGuard(settings, origin.agent_id, origin.session_id)

    return make


class HealthGuard:
    """
    The guard of one visit.

    Time is read from the events, so that a visit which is taken up after a kill, and whose events are shown
    again, gets the verdict that it would have got.
    """

    def __init__(self, settings: HealthSettings, agent_id: str, session_id: str) -> None:
        self._settings = settings
        self._agent_id = agent_id
        self._session_id = session_id
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
            stop=found.severity.rank >= Severity.HIGH.rank,
        )
