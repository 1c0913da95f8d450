"""Threshold lines that no setting changes."""

from __future__ import annotations

from typing import Final

from queenright.grafana.export import ORANGE, RED, Lines, burn_lines
from queenright.health.objectives import (
    BUDGET_LOW_SHARE,
    DEGRADED_SHARE,
    INTERVENTION_TARGET_SECONDS,
    JUDGE_UNKNOWN_SHARE,
    LATE_SHARE,
    OUTBOX_STUCK_SECONDS,
    TOOL_ERROR_SHARE,
)
from queenright.health.settings import CLOCK_TOLERANCE_SECONDS

IN_TROUBLE: Final[Lines] = ((DEGRADED_SHARE, RED),)
TOOL_ERRORS: Final[Lines] = ((TOOL_ERROR_SHARE, ORANGE),)
UNKNOWN: Final[Lines] = ((JUDGE_UNKNOWN_SHARE, ORANGE),)
BUDGET: Final[Lines] = ((BUDGET_LOW_SHARE, ORANGE), (1.0, RED))
OUTBOX: Final[Lines] = ((OUTBOX_STUCK_SECONDS, RED),)
INTERVENTION: Final[Lines] = ((INTERVENTION_TARGET_SECONDS, ORANGE),)
SLOW_SHARE: Final = burn_lines(LATE_SHARE)
DETECTION: Final[Lines] = ((5, ORANGE),)
CLOCK: Final[Lines] = ((CLOCK_TOLERANCE_SECONDS, ORANGE),)
