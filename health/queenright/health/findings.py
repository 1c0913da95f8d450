"""Findings and their severity."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

WorkerKey = tuple[str, str]
"""``(agent_id, session_id)``: one session of one worker. Its incarnation may change."""


class FindingKind(StrEnum):
    """
    The kinds of findings, causes before effects. Of two findings, the kind listed first names the ticket.
    """

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
"""Detectors that run in shadow mode unless the settings turn them on."""

KINDS_AFTER_END: Final = frozenset({FindingKind.RECOVERY_FAILED, FindingKind.RUNS_FAILED})
"""Findings that keep a ticket open after the session has ended. A person may resolve them."""


class Severity(StrEnum):
    """The severity of a finding or ticket."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    def __init__(self, word: str) -> None:
        self.rank = len(type(self).__members__)
        """The rank of the severity, from 0 for low to 3 for critical."""


_KIND_RANK: Final = {kind: rank for rank, kind in enumerate(FindingKind)}


class Finding(NamedTuple):
    """
    What one detector found about one worker.

    ``since`` is when the condition began, in seconds since the epoch. A finding with ``ticket=False`` is
    shown and counted, but opens no ticket; examples are findings in the warning band, in a start grace, or
    about a spike. A finding with ``shadow=True`` comes from a detector in shadow mode, and has no effect.
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
        """Return a finding. By default, it opens a ticket unless its severity is low."""
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


_KINDS_UNRELATED_TO_PROVIDERS: Final = frozenset(
    {
        FindingKind.CONTEXT_EXHAUSTED,
        FindingKind.RESOURCE_LIMIT,
        FindingKind.SPENDING,
        FindingKind.DOOM_LOOP,
    }
)
"""Kinds that failing model calls do not cause."""


def find_worst(findings: Iterable[Finding]) -> Finding | None:
    """
    Return the most important finding, or None: findings that open a ticket first, then by severity, then by
    kind.

    A severe problem of the worker itself comes before a failure of its provider, which other workers share.
    """
    order = sorted(findings, key=lambda f: (not f.ticket, -f.severity.rank, _KIND_RANK[f.kind]))
    if order and order[0].kind is FindingKind.PROVIDER_FAILURE:
        return next(filter(pages_despite_provider_failure, order), order[0])
    return order[0] if order else None


def pages_despite_provider_failure(finding: Finding) -> bool:
    """Return whether a finding pages even while the worker's provider fails for every worker."""
    is_bad = finding.severity.rank >= Severity.HIGH.rank
    return finding.ticket and is_bad and finding.kind in _KINDS_UNRELATED_TO_PROVIDERS
