"""Findings and their severity."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

WorkerKey = tuple[str, str]
"""``(agent_id, session_id)``: one run of one worker. Its incarnation may change."""


class FindingKind(StrEnum):
    """The kinds of findings. The order is that of cause: of two findings, the earlier names the ticket."""

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


SHADOW_KINDS: Final = frozenset({FindingKind.GRINDING, FindingKind.TOKEN_BURN})
"""Detectors that are in shadow unless the settings turn them on."""

KINDS_AFTER_END: Final = frozenset({FindingKind.RECOVERY_FAILED, FindingKind.RUNS_FAILED})
"""Findings that hold a ticket after the session has ended, and that a person may resolve."""


class Severity(StrEnum):
    """The severity of a finding or ticket."""

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
    The observation of one detector about one worker.

    ``since`` is when the condition began, in seconds since the epoch. A
    finding with ``ticket=False`` is shown and counted, and is never a reason
    for a ticket: the warning band, a start grace, a spike. One with
    ``shadow=True`` has no effect: its detector is in shadow mode.
    """

    kind: FindingKind
    severity: Severity
    evidence: str
    since: float
    ticket: bool = True
    shadow: bool = False

    @classmethod
    def of(
        cls, kind: FindingKind, severity: Severity, evidence: str, since: float, *, ticket: bool | None = None
    ) -> Finding:
        """Return a finding; by default, one of low severity is no reason for a ticket."""
        return cls(
            kind, severity, evidence, since, severity is not Severity.LOW if ticket is None else ticket
        )

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
"""Kinds that failing model calls do not cause."""


def worst(findings: Iterable[Finding]) -> Finding | None:
    """
    Return the most important finding: ticket-worthy first, then by severity, then by order of cause.

    The worker's own paging problem comes before its provider's failure, which other workers have too.
    """
    order = sorted(findings, key=lambda f: (not f.ticket, -f.severity.rank, _KIND_RANK[f.kind]))
    if order and order[0].kind is FindingKind.PROVIDER_FAILURE:
        return next(filter(pages_despite_provider_failure, order), order[0])
    return order[0] if order else None


def pages_despite_provider_failure(finding: Finding) -> bool:
    """Return whether a worker pages for this even while its provider fails for every worker."""
    is_bad = finding.severity.rank >= Severity.HIGH.rank
    return finding.ticket and is_bad and finding.kind in _NOT_BY_A_PROVIDER
