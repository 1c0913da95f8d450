"""Thresholds that alerts and dashboards share, and how fast an error budget is spent."""

from __future__ import annotations

from typing import Final

JUDGE_UNKNOWN_SHARE: Final = 0.5
"""The share of checks without a verdict above which the judge fails: a working model is far below."""
BUDGET_LOW_SHARE: Final = 0.8
"""The share of the judging budget at which an alert says so, while there is time to raise it."""
OUTBOX_STUCK_SECONDS: Final = 120.0
"""The age of an undelivered notification that pages; a restart of Alertmanager takes less."""
FASTEST_BURN: Final = 14.4
"""So many times too fast is 2 % of a month's budget in an hour; the fastest that is told."""


def burning_share(budget: float, factor: float) -> float:
    """
    Return the share of what goes wrong, from which on a budget is spent ``factor`` times too fast.

    That is ``factor * budget``, as long as it is a share. A multiple of a large budget would be everything
    or more, and an alert on it could never fire: then it is ``1 - (1 - budget) ** factor``, which is below
    1, and no multiple any more but a sign that nearly all goes wrong.

    Args:
        budget: The share that may go wrong, above 0 and below 1.
        factor: 1 or more.
    """
    return factor * budget if can_burn(budget, factor) else float(1 - (1 - budget) ** factor)


def can_burn(budget: float, factor: float) -> bool:
    """Return whether a budget can be spent ``factor`` times too fast at all."""
    return factor * budget < 1
