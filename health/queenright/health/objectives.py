"""Thresholds and burn rates of error budgets that alerts and dashboards share."""

from __future__ import annotations

from typing import Final

JUDGE_UNKNOWN_SHARE: Final = 0.5
"""The share of checks without a verdict above which the judge fails: a working model is far below."""
BUDGET_LOW_SHARE: Final = 0.8
"""The used share of the judging budget that fires a warning, early enough to raise it."""
OUTBOX_STUCK_SECONDS: Final = 120.0
"""The age of an undelivered notification that pages; a restart of Alertmanager takes less."""
DEGRADED_SHARE: Final = 0.5
"""The share of agents in trouble, without a page of their own, that pages about the fleet."""
TOOL_ERROR_SHARE: Final = 0.5
"""The share of a worker's tool calls that failed within 5 minutes: most of them."""
INTERVENTION_TARGET_SECONDS: Final = 300
"""Seconds within which the first intervention is in time; a bucket of the histogram."""
LATE_SHARE: Final = 0.05
"""The share of problems whose first intervention may come later."""
FASTEST_BURN: Final = 14.4
"""The fastest burn rate with an alert: 2 % of a month's budget in an hour."""


def burning_share(budget: float, factor: float) -> float:
    """
    Return the share of failures above which a budget burns ``factor`` times too fast.

    That is ``factor * budget`` while it is below 1. For a large budget it would be 1 or more, and its alert
    could never fire: then it is ``1 - (1 - budget) ** factor``, a sign that nearly everything fails.

    Args:
        budget: The share that may fail, above 0 and below 1.
        factor: 1 or more.
    """
    return factor * budget if can_burn(budget, factor) else float(1 - (1 - budget) ** factor)


def can_burn(budget: float, factor: float) -> bool:
    """Return whether a budget can burn ``factor`` times too fast at all."""
    return factor * budget < 1
