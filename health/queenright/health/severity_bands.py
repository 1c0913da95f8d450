"""Severity by count or duration."""

from __future__ import annotations

from typing import Final

from queenright.health.findings import Severity
from queenright.health.settings import HealthSettings

HIGH_AFTER: Final = 2
CRITICAL_AFTER: Final = 4
"""Multiples of a limit in time: twice as long is high, and twice that critical."""


def severity_by_count(times: int, limit: int, settings: HealthSettings, high: int | None = None) -> Severity:
    """Return the severity of ``times`` repeats: high from ``high``, otherwise from 1.5 times the limit."""
    if times > 2 * limit and times >= settings.bands.critical:
        return Severity.CRITICAL
    return Severity.HIGH if times >= (high or one_and_a_half_times(limit)) else Severity.MEDIUM


def one_and_a_half_times(limit: int) -> int:
    """Return 1.5 times the limit, rounded up: from there on, repeats are high."""
    return limit + (limit + 1) // 2


def severity_by_duration(seconds: float, limit: float) -> Severity:
    """Return the severity of a condition that has reached its limit, by its duration."""
    if seconds >= CRITICAL_AFTER * limit:
        return Severity.CRITICAL
    return Severity.HIGH if seconds >= HIGH_AFTER * limit else Severity.MEDIUM
