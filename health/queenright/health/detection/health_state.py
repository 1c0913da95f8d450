"""Determine a worker's health state: the five states and their transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_facts import CONTEXT_FULL
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.redaction import redact


class HealthState(StrEnum):
    """The health of a worker, best first."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    STUCK = "stuck"
    FAILING = "failing"
    TERMINATED = "terminated"

    @property
    def rank(self) -> int:
        """The rank of the state, from 0 for healthy to 4 for terminated."""
        return _STATE_RANK[self]

    @property
    def is_in_trouble(self) -> bool:
        """Whether the worker is stuck or failing, so that an intervention may be needed."""
        return self in (HealthState.STUCK, HealthState.FAILING)


_STATE_RANK: Final = {state: rank for rank, state in enumerate(HealthState)}

_ERROR_LIMIT: Final = 200

# The lowest severity at which a finding means that the worker is stuck.
_STUCK_FROM: Final = {
    FindingKind.STALL: Severity.CRITICAL,
    FindingKind.CONTEXT_EXHAUSTED: Severity.MEDIUM,
    FindingKind.DOOM_LOOP: Severity.MEDIUM,
    FindingKind.CHECKPOINT_STALE: Severity.MEDIUM,
    FindingKind.NO_TOOL_CALLS: Severity.MEDIUM,
    FindingKind.NO_TOKENS: Severity.MEDIUM,
    FindingKind.ZERO_PROGRESS: Severity.HIGH,
    FindingKind.ERROR_STREAK: Severity.HIGH,
    FindingKind.RETRY_STORM: Severity.HIGH,
}

TRANSITIONS: Final[Mapping[HealthState, frozenset[HealthState]]] = {
    state: frozenset() if state is HealthState.TERMINATED else frozenset(HealthState) - {state}
    for state in HealthState
}
"""Allowed transitions within one incarnation: any, except from terminated."""


def is_allowed_transition(before: HealthState, after: HealthState, *, has_restarted: bool) -> bool:
    """
    Return whether a transition is allowed.

    Args:
        has_restarted: Whether another incarnation or execution has begun. If so, any transition is allowed.
    """
    return has_restarted or after in TRANSITIONS[before]


def determine_state(
    v: VitalSigns, findings: Sequence[Finding], settings: HealthSettings, now: float
) -> HealthState:
    """
    Return the worst state that applies: terminated, failing, stuck, degraded, healthy.

    Health describes a running session. A session that has ended is healthy, even if it failed (see its
    outcome), unless too many runs of its agent failed in a row. The next run in the same session has its own
    state. Only the findings depend on the time.
    """
    if v.status is WorkerStatus.TERMINATED:
        return HealthState.TERMINATED
    if v.has_failed_recovery and settings.acts_on(FindingKind.RECOVERY_FAILED):
        return HealthState.FAILING
    if v.ended_at is not None:
        has_too_many_failed_runs = v.failed_runs > settings.health_check.consecutive_failures
        return HealthState.FAILING if has_too_many_failed_runs else HealthState.HEALTHY
    if has_too_many_failures(v, settings):
        return HealthState.FAILING
    if v.breakers.open and settings.acts_on(FindingKind.CIRCUIT_BREAKER_OPEN):
        return HealthState.FAILING
    if any(is_stuck(finding) for finding in findings):
        return HealthState.STUCK
    return HealthState.DEGRADED if findings else HealthState.HEALTHY


def has_too_many_failures(v: VitalSigns, settings: HealthSettings) -> bool:
    """Return whether too many consecutive steps or LLM calls failed."""
    limit = settings.health_check.consecutive_failures
    if v.consecutive_failures > limit:
        return True
    kind = FindingKind.CONTEXT_EXHAUSTED if v.llm_error == CONTEXT_FULL else FindingKind.PROVIDER_FAILURE
    return v.llm_errors > limit and settings.acts_on(kind)


def describe_failures(v: VitalSigns) -> str:
    """Return how many steps or LLM calls failed in a row, and the last error with secrets masked."""
    counts = ((v.consecutive_failures, "step"), (v.llm_errors, "LLM call"))
    failures = " and ".join(format_count(number, noun) for number, noun in counts if number)
    last = f", last with {redact(' '.join(v.evidence.split()), _ERROR_LIMIT)}" if v.evidence else ""
    return f"{failures} failed in a row{last}"


def describe_failed_runs(v: VitalSigns) -> str:
    """Return how many runs of the agent failed in a row."""
    return f"{format_count(v.failed_runs, 'run')} of the agent have failed in a row"


def is_progressing_despite_breaker(v: VitalSigns, findings: Sequence[Finding]) -> bool:
    """
    Return whether a worker is failing only because of an open circuit breaker, and makes progress anyway.

    Progress counts if it was made after the breaker opened and the session has not ended.
    """
    return (
        bool(v.breakers.open)
        and v.settings.acts_on(FindingKind.CIRCUIT_BREAKER_OPEN)
        and v.ended_at is None
        and not v.has_failed_recovery
        and not has_too_many_failures(v, v.settings)
        and v.last_progress is not None
        and v.last_progress > v.breakers_since
        and not any(is_stuck(finding) for finding in findings)
    )


def is_stuck(finding: Finding) -> bool:
    """Return whether a finding means that the worker is stuck."""
    if finding.kind is FindingKind.STALL and finding.ticket:
        return True
    limit = _STUCK_FROM.get(finding.kind)
    return limit is not None and finding.severity.rank >= limit.rank
