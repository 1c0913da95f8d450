"""Threshold lines of the dashboards, from the same settings as the detectors and the alert rules."""

from __future__ import annotations

from dataclasses import dataclass

from queenright.health.objectives import FASTEST_BURN, burning_share
from queenright.health.settings import HealthSettings

BLUE, YELLOW, ORANGE, RED = "blue", "yellow", "orange", "red"

Lines = tuple[tuple[float, str], ...]
"""Threshold lines in ascending order: value and colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The lines that depend on settings; times in seconds, shares from 0 to 1."""

    bad_steps: Lines
    activity: Lines
    heartbeat: Lines
    checkpoint: Lines
    judge: Lines
    triage: Lines
    bad_step_share: Lines
    breaker_failures: Lines

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
            bad_step_share=burn_lines(rules.bad_steps.error_budget),
            breaker_failures=_rising((settings.circuit_breaker.default.failure_threshold, ORANGE)),
        )


def _rising(*lines: tuple[float, str]) -> Lines:
    # Grafana requires ascending steps, and custom settings may have a different order.
    return tuple(sorted(lines, key=lambda line: line[0]))


def burn_lines(budget: float) -> Lines:
    """Return the error budget and the share at which the fastest burn-rate alert fires."""
    return (budget, ORANGE), (burning_share(budget, FASTEST_BURN), RED)
