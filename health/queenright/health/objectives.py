"""How fast an error budget is spent: what alerts and dashboards share about objectives."""

from __future__ import annotations

from typing import Final

FASTEST_BURN: Final = 14.4
"""So many times too fast is 2 % of a month's budget in an hour; the fastest that is told."""


def burning_share(budget: float, factor: float) -> float:
    """
    Return the share of what goes wrong, from which on a budget is spent ``factor`` times too fast.

    For a small budget that is ``factor * budget``. A multiple of a large one would be more than everything,
    and an alert on it could never fire; this is always below 1.

    Args:
        budget: The share that may go wrong, above 0 and below 1.
        factor: 1 or more.
    """
    return float(1 - (1 - budget) ** factor)
