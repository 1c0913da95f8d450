"""The health state: one pure function, every input maps to exactly one of five states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queenright.health.findings import Finding, FindingKind, HealthState, Severity
from queenright.health.settings import HealthSettings
from queenright.health.vitals import SessionStatus, VitalSigns

# From which severity on a finding says that the worker gets nowhere; below it is a warning sign.
_STUCK_FROM: Final = {
    FindingKind.STALL: Severity.CRITICAL,
    FindingKind.DOOM_LOOP: Severity.MEDIUM,
    FindingKind.CHECKPOINT_STALE: Severity.MEDIUM,
    FindingKind.NO_TOOL_CALLS: Severity.MEDIUM,
    FindingKind.ZERO_PROGRESS: Severity.HIGH,
    FindingKind.ERROR_STREAK: Severity.HIGH,
    FindingKind.RETRY_STORM: Severity.HIGH,
}


def health_state(
    v: VitalSigns, findings: Sequence[Finding], settings: HealthSettings, now: float
) -> HealthState:
    """
    Return the worst state that anything speaks for: terminated, failing, stuck, degraded, healthy.

    Time enters through the findings only, which time alone never takes back. A session that
    ended well, or was cancelled, is healthy: nothing is wrong with it any more.
    """
    if v.status is SessionStatus.TERMINATED:
        return HealthState.TERMINATED
    if v.status is SessionStatus.FAILED:
        return HealthState.FAILING
    if v.ended_at is not None:
        return HealthState.HEALTHY
    most = settings.health_check.consecutive_failures
    if v.consecutive_failures > most or v.llm_errors > most:
        return HealthState.FAILING
    if any(_is_stuck(finding) for finding in findings):
        return HealthState.STUCK
    return HealthState.DEGRADED if findings else HealthState.HEALTHY


def _is_stuck(finding: Finding) -> bool:
    limit = _STUCK_FROM.get(finding.kind)
    return limit is not None and finding.severity.rank >= limit.rank
