"""Simulated faults, with their ground truth: when each begins, and when and as what it must be detected."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.vitals.session_outcome import WorkerStatus

AFTERMATH: Final = 600.0
"""Seconds after the end of a fault in which it may still be detected."""


class FaultKind(StrEnum):
    """The kinds of simulated faults."""

    HANG_IN_LLM = "hang in an LLM call"
    HANG_BETWEEN_STEPS = "hang between steps"
    HANG_IN_TOOL = "hang in a tool"
    HANG_IN_DECLARED_TOOL = "hang in a tool past its declared time"
    SKEWED_HANG = "hang, with a clock that is wrong"
    DOOM_LOOP = "doom loop"
    RETRY_STORM = "retry storm"
    ERROR_STREAK = "error streak"
    CRASH = "crash"
    KILLED = "killed, no last word"
    PROVIDER_FAILURE = "provider failure"
    CHECKPOINTS_STOP = "checkpoints that stop"
    TOKEN_SPIKE = "token spike"
    ERROR_RATE = "error rate"
    NO_HEARTBEATS = "heartbeats that stop"
    ZOMBIE = "zombie: only heartbeats"
    OPEN_BREAKER = "open breaker"


_DETECTED_AS: Final = {
    FaultKind.HANG_IN_LLM: (FindingKind.STALL, Severity.CRITICAL),
    FaultKind.HANG_BETWEEN_STEPS: (FindingKind.STALL, Severity.CRITICAL),
    FaultKind.HANG_IN_TOOL: (FindingKind.STALL, Severity.CRITICAL),
    FaultKind.HANG_IN_DECLARED_TOOL: (FindingKind.STALL, Severity.CRITICAL),
    FaultKind.SKEWED_HANG: (FindingKind.STALL, Severity.CRITICAL),
    FaultKind.DOOM_LOOP: (FindingKind.DOOM_LOOP, Severity.MEDIUM),
    FaultKind.RETRY_STORM: (FindingKind.RETRY_STORM, Severity.HIGH),
    FaultKind.ERROR_STREAK: (FindingKind.ERROR_STREAK, Severity.MEDIUM),
    FaultKind.KILLED: (FindingKind.STALL, Severity.CRITICAL),
    FaultKind.PROVIDER_FAILURE: (FindingKind.PROVIDER_FAILURE, Severity.MEDIUM),
    FaultKind.CHECKPOINTS_STOP: (FindingKind.CHECKPOINT_STALE, Severity.MEDIUM),
    FaultKind.TOKEN_SPIKE: (FindingKind.TOKEN_SPIKE, Severity.LOW),
    FaultKind.ERROR_RATE: (FindingKind.ERROR_RATE, Severity.LOW),
    FaultKind.NO_HEARTBEATS: (FindingKind.HEARTBEAT_MISSING, Severity.MEDIUM),
    FaultKind.ZOMBIE: (FindingKind.STALL, Severity.CRITICAL),
    FaultKind.OPEN_BREAKER: (FindingKind.CIRCUIT_BREAKER_OPEN, Severity.MEDIUM),
}


@dataclass(slots=True, eq=False)
class Fault:
    """A fault of a worker. Times are on the service's clock."""

    kind: FaultKind
    agent_id: str
    session_id: str
    began_at: float
    threshold: float | None = None
    """Time from which it must be detected; None while unknown."""
    detected_at: float | None = None
    first_action_at: float | None = None
    """Time of the first intervention."""
    ended_at: float | None = None
    is_excluded: bool = False
    """Whether the host was suspended before the detection, which restarts every clock."""
    actions: Counter[str] = field(default_factory=Counter)

    def is_detected_by(self, finding: Finding) -> bool:
        """Return whether a finding describes this fault."""
        if self.kind not in _DETECTED_AS:
            return False
        kind, severity = _DETECTED_AS[self.kind]
        return finding.kind is kind and finding.severity.rank >= severity.rank

    def is_detected_as(self, status: WorkerStatus) -> bool:
        """Return whether the outcome of the run alone shows this fault."""
        return self.kind is FaultKind.CRASH and status is WorkerStatus.FAILED

    def explains(self, session_id: str, now: float, *, has_ended: bool) -> bool:
        """Return whether this fault explains an alarm about a session; ``has_ended``: the session is over."""
        if has_ended and session_id == self.session_id:
            return True
        return self.ended_at is None or now < self.ended_at + AFTERMATH
