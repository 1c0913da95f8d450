"""Rates with their confidence intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple, TypeVar

_Z: Final = 1.959963984540054
"""95 % of a normal distribution lie within so many standard deviations."""

_RESAMPLES: Final = 2_000
_SEED: Final = 20_260_101

T = TypeVar("T")


class Interval(NamedTuple):
    """Between these, with a confidence of 95 %."""

    low: float
    high: float


def wilson(hits: int, of: int) -> Interval:
    """Return Wilson's interval (1927) of a rate; unlike ``p ± z·s`` it means something at 0 of 10 too."""
    if of == 0:
        return Interval(0.0, 1.0)
    rate, z2 = hits / of, _Z * _Z
    centre = (rate + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z * math.sqrt(rate * (1 - rate) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    # At the ends it is exact, whatever the arithmetic rounds to.
    return Interval(
        0.0 if hits == 0 else max(0.0, centre - half), 1.0 if hits == of else min(1.0, centre + half)
    )


def bootstrap(sample: Sequence[T], statistic: Callable[[Sequence[T]], float | None]) -> Interval | None:
    """
    Return the percentile interval of a statistic; the same at each call, as the seed is fixed.

    Resamples in which the statistic is not defined (None) are left out; None if it never is.
    """
    dice = random.Random(_SEED)
    found = []
    for _ in range(_RESAMPLES if sample else 0):
        value = statistic(dice.choices(sample, k=len(sample)))
        if value is not None:
            found.append(value)
    if not found:
        return None
    found.sort()
    return Interval(found[int(0.025 * (len(found) - 1))], found[math.ceil(0.975 * (len(found) - 1))])


def middle(values: Sequence[int]) -> tuple[float, Interval] | None:
    """Return the median and its interval, or None without values."""
    interval = bootstrap(values, lambda sample: float(median(sample)))
    return None if interval is None else (float(median(values)), interval)


def rate(hits: int, of: int) -> str:
    """Return ``hits`` as a table shows it: per cent and interval."""
    if of == 0:
        return "\N{EN DASH}"
    low, high = wilson(hits, of)
    return f"{percent(hits / of)} ({percent(low, bare=True)}\N{EN DASH}{percent(high, bare=True)})"


def percent(share: float, *, bare: bool = False) -> str:
    """Return a share in per cent, with a decimal below ten."""
    value = 100 * share
    text = f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"
    return text if bare else f"{text}%"
