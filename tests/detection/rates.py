"""Rates with their confidence intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple, TypeVar

_Z: Final = 1.959963984540054
"""95 % of a normal distribution is within this many standard deviations."""

_RESAMPLES: Final = 2_000
_SEED: Final = 20_260_101

T = TypeVar("T")


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


def compute_wilson_interval(hits: int, total: int) -> Interval:
    """Return Wilson's interval (1927) of a rate. Unlike ``p ± z·s``, it is also meaningful for 0 of 10."""
    if total == 0:
        return Interval(0.0, 1.0)
    rate, z2 = hits / total, _Z * _Z
    centre = (rate + z2 / (2 * total)) / (1 + z2 / total)
    half_width = _Z * math.sqrt(rate * (1 - rate) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    # The bounds at 0 and 1 are exact, so rounding errors are avoided.
    return Interval(
        0.0 if hits == 0 else max(0.0, centre - half_width),
        1.0 if hits == total else min(1.0, centre + half_width),
    )


def compute_bootstrap_interval(
    sample: Sequence[T], statistic: Callable[[Sequence[T]], float | None]
) -> Interval | None:
    """
    Return the percentile interval of a statistic. The seed is fixed, so the interval is reproducible.

    Resamples in which the statistic is None are ignored. None if it is None in all of them.
    """
    generator = random.Random(_SEED)
    values = []
    for _ in range(_RESAMPLES if sample else 0):
        value = statistic(generator.choices(sample, k=len(sample)))
        if value is not None:
            values.append(value)
    if not values:
        return None
    values.sort()
    return Interval(values[int(0.025 * (len(values) - 1))], values[math.ceil(0.975 * (len(values) - 1))])


def compute_median(values: Sequence[int]) -> tuple[float, Interval] | None:
    """Return the median and its interval, or None without values."""
    interval = compute_bootstrap_interval(values, lambda sample: float(median(sample)))
    return None if interval is None else (float(median(values)), interval)


def format_rate(hits: int, total: int) -> str:
    """Format a rate for a table: the percentage and its interval."""
    if total == 0:
        return "\N{EN DASH}"
    low, high = compute_wilson_interval(hits, total)
    interval = f"{format_percent(low, bare=True)}\N{EN DASH}{format_percent(high, bare=True)}"
    return f"{format_percent(hits / total)} ({interval})"


def format_percent(share: float, *, bare: bool = False) -> str:
    """Format a share as a percentage, with one decimal below ten."""
    value = 100 * share
    text = f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"
    return text if bare else f"{text}%"
