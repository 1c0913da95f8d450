"""
The severity of a ticket: the worst of its findings is the minimum.

A model may raise it, not lower it.
"""

from __future__ import annotations

from collections.abc import Sequence

from queenright.health.findings import Finding, Severity


def minimum_severity(findings: Sequence[Finding]) -> Severity:
    """Return the worst severity of ``findings``: the minimum for a ticket about them."""
    return max((finding.severity for finding in findings), key=lambda severity: severity.rank)


def higher_severity(first: Severity, second: Severity) -> Severity:
    """Return the worse of two severities."""
    return first if first.rank >= second.rank else second
