"""
Guards, which run the health layer's detectors inside running nodes.

A guard warns the model before the monitor opens a ticket: a loop that the model ends itself needs no
operator. It stops a critical loop immediately, so that the loop causes no cost before an intervention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queenright.health.detection.detectors import detect, is_suspicious
from queenright.health.findings import FindingKind, Severity, find_worst
from queenright.health.settings import HealthSettings
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.runtime.events import AgentEvent
from queenright.runtime.nodes.node_guard import GuardFactory, GuardFinding
from queenright.runtime.nodes.reporting import Origin

GUARDED_FINDINGS: Final = frozenset(
    {
        FindingKind.DOOM_LOOP,
        FindingKind.ERROR_STREAK,
        FindingKind.NO_TOOL_CALLS,
        FindingKind.RETRY_STORM,
        FindingKind.ZERO_PROGRESS,
    }
)
"""Findings that a model can correct. The monitor handles silence; no model can correct a failing provider."""


def make_health_guard(settings: HealthSettings, *, hold_seconds: float = 0.0) -> GuardFactory:
    """
    Return a factory of guards, one for each visit of a node.

    The model gets a finding when it is ``medium``, and again when it is ``high``; ``critical`` stops
    the visit.

    Args:
        settings: The thresholds.
        hold_seconds: How long a stopped visit waits for an intervention before it ends.
    """

    def make(origin: Origin, node_id: str) -> HealthGuard:
        return HealthGuard(settings, origin.agent_id, origin.session_id, hold_seconds)

    return make


class HealthGuard:
    """
    The guard of one visit.

    It uses the times of the events, so a visit that resumes after a kill gets the same verdict when its
    events are replayed.
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
        """Apply an event of the visit. Return the worst finding after it, or None."""
        vitals = self._vitals
        if vitals is None:
            vitals = self._vitals = VitalSigns(self._agent_id, self._session_id, event.time, self._settings)
        at = max(event.time, vitals.last_activity)
        # A visit that a restart interrupted is the same visit: its counts continue.
        vitals.apply(replace(event, incarnation_id=""), at)
        if not is_suspicious(vitals, self._settings):
            return None
        worst_finding = find_worst(
            finding
            for finding in detect(vitals, self._settings, at)
            if finding.kind in GUARDED_FINDINGS and finding.severity.rank >= Severity.MEDIUM.rank
        )
        if worst_finding is None:
            return None
        return GuardFinding(
            kind=worst_finding.kind.value,
            evidence=worst_finding.evidence,
            stop=worst_finding.severity is Severity.CRITICAL,
            level=worst_finding.severity.value,
            hold_seconds=self.hold_seconds,
        )

    def reset(self) -> None:
        """Reset all counts."""
        self._vitals = None
