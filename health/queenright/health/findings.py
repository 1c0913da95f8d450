"""What detectors say and what it adds up to: findings, their severity, the five health states."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

WorkerKey = tuple[str, str]
"""``(agent_id, session_id)``: one run of one worker. Its incarnation is a field that changes."""


class FindingKind(StrEnum):
    """What a detector saw. The order is the order of cause: of two findings, the earlier names the ticket."""

    RECOVERY_FAILED = "recovery_failed"
    RUNS_FAILED = "runs_failed"
    CONTEXT_EXHAUSTED = "context_exhausted"
    PROVIDER_FAILURE = "provider_failure"
    CIRCUIT_BREAKER_OPEN = "circuit_breaker_open"
    RESOURCE_LIMIT = "resource_limit"
    SPENDING = "spending"
    DOOM_LOOP = "doom_loop"
    ERROR_STREAK = "error_streak"
    RETRY_STORM = "retry_storm"
    STALL = "stall"
    ZERO_PROGRESS = "zero_progress"
    NO_TOOL_CALLS = "no_tool_calls"
    CHECKPOINT_STALE = "checkpoint_stale"
    NO_TOKENS = "no_tokens"
    HEARTBEAT_MISSING = "heartbeat_missing"
    TOOL_TIMEOUT = "tool_timeout"
    MCP_SERVER_MISSING = "mcp_server_missing"
    ERROR_RATE = "error_rate"
    OUTPUT_UNCHANGED = "output_unchanged"
    TOKEN_SPIKE = "token_spike"
    GRINDING = "grinding"
    TOKEN_BURN = "token_burn"


ON_TRIAL: Final = frozenset({FindingKind.GRINDING, FindingKind.TOKEN_BURN})
"""Of these detectors nothing follows unless the settings turn them on."""

HOLDS_AFTER_THE_END: Final = frozenset({FindingKind.RECOVERY_FAILED, FindingKind.RUNS_FAILED})
"""Reasons for a ticket about a session that is over, too; a person may settle them."""


class Severity(StrEnum):
    """How bad it is, in the word that tickets use."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    def __init__(self, word: str) -> None:
        self.rank = len(type(self).__members__)
        """0 for low to 3 for critical."""


_KIND_RANK: Final = {kind: rank for rank, kind in enumerate(FindingKind)}


class Finding(NamedTuple):
    """
    What one detector saw in one worker.

    ``since`` is when the condition began, in seconds since the epoch. A
    finding with ``ticket=False`` is shown and counted, and is never a reason
    for a ticket: the warning band, a start grace, a spike. From one with
    ``shadow=True`` nothing follows at all: its detector is on trial.
    """

    kind: FindingKind
    severity: Severity
    evidence: str
    since: float
    ticket: bool = True
    shadow: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {
            "kind": self.kind.value,
            "severity": self.severity.value,
            "evidence": self.evidence,
            "since": self.since,
            "ticket": self.ticket,
        } | ({"shadow": True} if self.shadow else {})


_NOT_BY_A_PROVIDER: Final = frozenset(
    {
        FindingKind.CONTEXT_EXHAUSTED,
        FindingKind.RESOURCE_LIMIT,
        FindingKind.SPENDING,
        FindingKind.DOOM_LOOP,
    }
)
"""What does not come of failing model calls."""


def worst(findings: Iterable[Finding]) -> Finding | None:
    """
    Return the finding that matters most: ticket-worthy first, then by severity, then by order of cause.

    What is the worker's own and pages comes before its provider's failure, of which other workers tell too.
    """
    ordered = sorted(findings, key=lambda f: (not f.ticket, -f.severity.rank, _KIND_RANK[f.kind]))
    if ordered and ordered[0].kind is FindingKind.PROVIDER_FAILURE:
        return next(filter(is_own_beside_provider, ordered), ordered[0])
    return ordered[0] if ordered else None


def is_own_beside_provider(finding: Finding) -> bool:
    """Return whether a worker is paged for this even while its provider fails for everybody."""
    is_bad = finding.severity.rank >= Severity.HIGH.rank
    return finding.ticket and is_bad and finding.kind in _NOT_BY_A_PROVIDER


class HealthState(StrEnum):
    """How a worker is, best first (IMPL-REQ-003 FR-001)."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    STUCK = "stuck"
    FAILING = "failing"
    TERMINATED = "terminated"

    @property
    def rank(self) -> int:
        """0 for healthy to 4 for terminated."""
        return _STATE_RANK[self]

    @property
    def in_trouble(self) -> bool:
        """Whether a worker that is so gets nowhere, and something may have to be done about it."""
        return self in (HealthState.STUCK, HealthState.FAILING)


_STATE_RANK: Final = {state: rank for rank, state in enumerate(HealthState)}
