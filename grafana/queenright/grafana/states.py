"""Health states, severities and thresholds as the dashboards show them: one colour each, everywhere."""

from __future__ import annotations

from queenright.grafana.promql import select
from queenright.health.findings import HealthState, Severity
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names

GREEN, BLUE, YELLOW, ORANGE, RED, GREY = "green", "blue", "yellow", "orange", "red", "#8e8e8e"

STATES: dict[HealthState, tuple[int, str]] = {
    HealthState.TERMINATED: (0, GREY),
    HealthState.HEALTHY: (1, GREEN),
    HealthState.DEGRADED: (2, YELLOW),
    HealthState.STUCK: (3, ORANGE),
    HealthState.FAILING: (4, RED),
}
"""Rank and colour of each health state. Who is terminated needs nobody any more, so it ranks lowest."""

SEVERITIES: dict[Severity, str] = {
    Severity.LOW: BLUE,
    Severity.MEDIUM: YELLOW,
    Severity.HIGH: ORANGE,
    Severity.CRITICAL: RED,
}
"""Colour of each ticket severity."""

Lines = tuple[tuple[float, str], ...]
"""Threshold lines: from which value on, in which colour."""

_defaults = HealthSettings()

BAD_STEPS: Lines = (
    (_defaults.bands.warning, BLUE),
    (_defaults.bands.medium, YELLOW),
    (_defaults.bands.high, ORANGE),
    (_defaults.bands.critical, RED),
)
ACTIVITY_AGE: Lines = ((_defaults.stall.idle_seconds, ORANGE), (_defaults.stall.tool_seconds, RED))
HEARTBEAT_AGE: Lines = ((_defaults.heartbeat.timeout_seconds, ORANGE),)
CHECKPOINT_AGE: Lines = (
    (_defaults.health_check.checkpoint_degraded_seconds, YELLOW),
    (_defaults.health_check.checkpoint_stale_threshold_seconds, ORANGE),
)
JUDGE_AGE: Lines = (
    (2 * _defaults.judge.interval_seconds, ORANGE),
    (3 * _defaults.judge.interval_seconds, RED),
)


def state_rank() -> str:
    """Return the query for the rank of each agent's worst health state, the way ``STATES`` ranks them."""
    terms = (f"{rank} * ({_in_state(state)} == 1)" for state, (rank, _) in STATES.items())
    return f"max by (agent) ({' or '.join(terms)})"


def _in_state(state: str) -> str:
    return select(names.AGENT_STATE, f'state="{state}"')
