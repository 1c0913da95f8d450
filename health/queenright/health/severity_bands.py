"""The severity of a finding by count or duration."""

from __future__ import annotations

from typing import Final

from queenright.health.findings import Severity
from queenright.health.settings import HealthSettings

HIGH_AFTER: Final = 2
CRITICAL_AFTER: Final = 4
"""Multiples of a time limit at which the severity becomes high and critical."""


def rate_count(times: int, limit: int, settings: HealthSettings, high: int | None = None) -> Severity:
    """
    Return the severity of ``times`` repeats. It is high from ``high``, by default 1.5 times the limit.
    """
    if times > 2 * limit and times >= settings.bands.critical:
        return Severity.CRITICAL
    return Severity.HIGH if times >= (high or get_high_limit(limit)) else Severity.MEDIUM


def get_high_limit(limit: int) -> int:
    """Return 1.5 times the limit, rounded up: the number of repeats at which the severity becomes high."""
    return limit + (limit + 1) // 2


def rate_duration(seconds: float, limit: float) -> Severity:
    """Return the severity of a condition that has lasted for at least ``limit`` seconds."""
    if seconds >= CRITICAL_AFTER * limit:
        return Severity.CRITICAL
    return Severity.HIGH if seconds >= HIGH_AFTER * limit else Severity.MEDIUM
