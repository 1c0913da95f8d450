"""Threshold lines of the dashboards, from the same settings as the detectors and the alert rules."""

from __future__ import annotations

from dataclasses import dataclass

from queenright.health.objectives import (
    BUDGET_LOW_SHARE,
    DEGRADED_SHARE,
    FASTEST_BURN,
    INTERVENTION_TARGET_SECONDS,
    JUDGE_UNKNOWN_SHARE,
    LATE_SHARE,
    OUTBOX_STUCK_SECONDS,
    TOOL_ERROR_SHARE,
    burning_share,
)
from queenright.health.settings import CLOCK_TOLERANCE_SECONDS, HealthSettings

BLUE, YELLOW, ORANGE, RED = "blue", "yellow", "orange", "red"

Lines = tuple[tuple[float, str], ...]
"""Threshold lines in ascending order: value and colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Threshold lines for one set of settings; times in seconds, shares from 0 to 1."""

    bad_steps: Lines
    activity: Lines
    heartbeat: Lines
    checkpoint: Lines
    judge: Lines
    triage: Lines
    in_trouble: Lines
    tool_errors: Lines
    unknown: Lines
    budget: Lines
    outbox: Lines
    intervention: Lines
    bad_step_share: Lines
    slow_share: Lines
    breaker_failures: Lines
    detection: Lines
    clock: Lines

    @classmethod
    def of(cls, settings: HealthSettings) -> Thresholds:
        """Return the threshold lines for ``settings``."""
        bands, check, rules = settings.bands, settings.health_check, settings.rules
        judge = settings.judge
        return cls(
            bad_steps=_rising(
                (bands.warning, BLUE), (bands.medium, YELLOW), (bands.high, ORANGE), (bands.critical, RED)
            ),
            activity=_rising((settings.stall.idle_seconds, ORANGE), (settings.stall.tool_seconds, RED)),
            heartbeat=_rising((settings.heartbeat.timeout_seconds, ORANGE)),
            checkpoint=_rising(
                (check.checkpoint_degraded_seconds, YELLOW),
                (check.checkpoint_stale_threshold_seconds, ORANGE),
            ),
            judge=_rising((2 * judge.interval_seconds, ORANGE), (3 * judge.interval_seconds, RED)),
            triage=_rising((judge.triage_timeout_seconds / 2, YELLOW), (judge.triage_timeout_seconds, RED)),
            in_trouble=_rising((DEGRADED_SHARE, RED)),
            tool_errors=_rising((TOOL_ERROR_SHARE, ORANGE)),
            unknown=_rising((JUDGE_UNKNOWN_SHARE, ORANGE)),
            budget=_rising((BUDGET_LOW_SHARE, ORANGE), (1.0, RED)),
            outbox=_rising((OUTBOX_STUCK_SECONDS, RED)),
            intervention=_rising((INTERVENTION_TARGET_SECONDS, ORANGE)),
            bad_step_share=_burning(rules.bad_steps.error_budget),
            slow_share=_burning(LATE_SHARE),
            breaker_failures=_rising((settings.circuit_breaker.default.failure_threshold, ORANGE)),
            detection=((5, ORANGE),),
            clock=_rising((CLOCK_TOLERANCE_SECONDS, ORANGE)),
        )


def _rising(*lines: tuple[float, str]) -> Lines:
    # Grafana requires ascending steps, and custom settings may have a different order.
    return tuple(sorted(lines, key=lambda line: line[0]))


def _burning(budget: float) -> Lines:
    """Return the error budget and the share at which the fastest burn-rate alert fires."""
    return (budget, ORANGE), (burning_share(budget, FASTEST_BURN), RED)
