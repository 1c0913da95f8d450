"""
How far two lists of answers agree: the share, and Cohen's kappa with an interval.

Kappa (Cohen 1960) takes out what agreement chance alone would give: 0 is a coin that knows how often each
answer is due, 1 is full agreement, below 0 is worse than the coin. Weighted kappa (Cohen 1968) forgives
neighbours in an order: `high` for `critical` is half as wrong as `medium` for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

Pair = tuple[str, str]
"""(what was expected, what was answered)."""

RESAMPLES: Final = 1_000
_SEED: Final = 20_231


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """
    How far answers agree with what was expected.

    ``kappa``, and the 95 % interval ``low`` to ``high``, are None where it says nothing: there are no
    answers, or one answer only was ever due and ever given.
    """

    of: int
    agreed: int
    kappa: float | None
    low: float | None
    high: float | None

    @property
    def share(self) -> float:
        """Of all answers those that agree; 1 of none."""
        return self.agreed / self.of if self.of else 1.0


def agreement(
    pairs: Sequence[Pair], order: Sequence[str] = (), *, resamples: int = RESAMPLES, seed: int = _SEED
) -> Agreement:
    """
    Return how far the two sides of ``pairs`` agree.

    Args:
        pairs: Expected and answered.
        order: All answers from least to most, for linear weights; without it every miss is as bad.
        resamples: For the interval: percentiles of as many bootstrap samples.
        seed: The same seed gives the same interval.
    """
    value = kappa(pairs, order)
    low = high = None
    if value is not None:
        random = Random(seed)
        drawn = (kappa(random.choices(pairs, k=len(pairs)), order) for _ in range(resamples))
        values = sorted(k for k in drawn if k is not None)
        if values:
            low, high = values[int(0.025 * len(values))], values[math.ceil(0.975 * len(values)) - 1]
    agreed = sum(expected == answered for expected, answered in pairs)
    return Agreement(of=len(pairs), agreed=agreed, kappa=value, low=low, high=high)


def kappa(pairs: Sequence[Pair], order: Sequence[str] = ()) -> float | None:
    """
    Return Cohen's kappa, weighted linearly if ``order`` is given; None where it is not defined.

    Raises:
        ValueError: An answer is not in ``order``.
    """
    if not pairs:
        return None
    place = {answer: number for number, answer in enumerate(order)}
    if place and (strange := {answer for pair in pairs for answer in pair} - set(place)):
        raise ValueError(f"{sorted(strange)} are none of {list(order)}")

    def wrong(one: str, other: str) -> float:
        return abs(place[one] - place[other]) if place else float(one != other)

    expected = Counter(one for one, _ in pairs)
    answered = Counter(other for _, other in pairs)
    seen = sum(wrong(*pair) for pair in pairs) / len(pairs)
    by_chance = sum(m * n * wrong(a, b) for a, m in expected.items() for b, n in answered.items())
    return None if by_chance == 0 else 1 - seen * len(pairs) ** 2 / by_chance
