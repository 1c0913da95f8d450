"""Thresholds and burn rates of error budgets that alerts and dashboards share."""

from __future__ import annotations

from typing import Final

JUDGE_UNKNOWN_SHARE: Final = 0.5
"""Share of checks with outcome `unknown` above which QueenrightJudgeFailing fires; normal is far less."""
BUDGET_LOW_SHARE: Final = 0.8
"""Used share of the judging budget at which a warning fires, early enough to raise the budget."""
OUTBOX_STUCK_SECONDS: Final = 120.0
"""Seconds after which an undelivered notification pages. Alertmanager restarts faster."""
DEGRADED_SHARE: Final = 0.5
"""Share of agents in trouble without a page of their own at which QueenrightFleetDegraded fires."""
TOOL_ERROR_SHARE: Final = 0.5
"""Share of failed tool calls in 5 minutes above which QueenrightErrorRate fires."""
INTERVENTION_TARGET_SECONDS: Final = 300
"""Target for the first intervention, in seconds. It must be a bucket bound of the histogram."""
LATE_SHARE: Final = 0.05
"""Error budget: share of problems whose first intervention may miss the target."""
FASTEST_BURN: Final = 14.4
"""The fastest burn rate with an alert: 2 % of a month's budget in an hour."""


def compute_burn_threshold(budget: float, factor: float) -> float:
    """
    Return the share of failures above which a budget counts as burning ``factor`` times too fast.

    This is ``factor * budget`` if that is below 1. Otherwise the alert could never fire, so the result is ``1
    - (1 - budget) ** factor``, which means that nearly everything fails.

    Args:
        budget: The share that may fail, above 0 and below 1.
        factor: 1 or more.
    """
    return factor * budget if can_burn(budget, factor) else float(1 - (1 - budget) ** factor)


def can_burn(budget: float, factor: float) -> bool:
    """Return whether a budget is small enough to burn ``factor`` times too fast."""
    return factor * budget < 1
