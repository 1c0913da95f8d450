"""
The agreement of two lists of answers: the share of equal answers, and Cohen's kappa with an interval.

Kappa (Cohen 1960) corrects for agreement by chance: 0 is chance, 1 is full agreement, and below 0 is worse
than chance. Weighted kappa (Cohen 1968) counts distances: `high` instead of `critical` is half as wrong as
`medium`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

Pair = tuple[str, str]
"""The expected and the given answer."""

RESAMPLES: Final = 1_000
_SEED: Final = 20_231


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """
    The agreement of answers with the expected answers.

    ``kappa`` and its 95 % interval, ``low`` to ``high``, are None if undefined, because there are no answers,
    or all expected and given answers are the same.
    """

    of: int
    agreements: int
    kappa: float | None
    low: float | None
    high: float | None

    @property
    def share(self) -> float:
        """The share of answers that agree; 1 without answers."""
        return self.agreements / self.of if self.of else 1.0


def agreement(
    pairs: Sequence[Pair], order: Sequence[str] = (), *, resamples: int = RESAMPLES, seed: int = _SEED
) -> Agreement:
    """
    Return the agreement of the two sides of ``pairs``.

    Args:
        order: All possible answers in ascending order, for linear weights. If empty, all deviations have the
            same weight.
    """
    value = kappa(pairs, order)
    low = high = None
    if value is not None:
        random = Random(seed)
        samples = (kappa(random.choices(pairs, k=len(pairs)), order) for _ in range(resamples))
        values = sorted(k for k in samples if k is not None)
        if values:
            low, high = values[int(0.025 * len(values))], values[math.ceil(0.975 * len(values)) - 1]
    agreements = sum(expected == given_answer for expected, given_answer in pairs)
    return Agreement(of=len(pairs), agreements=agreements, kappa=value, low=low, high=high)


def kappa(pairs: Sequence[Pair], order: Sequence[str] = ()) -> float | None:
    """
    Return Cohen's kappa, weighted linearly if ``order`` is given, or None if undefined.

    Raises:
        ValueError: An answer is not in ``order``.
    """
    if not pairs:
        return None
    positions = {answer: number for number, answer in enumerate(order)}
    if positions and (unknown := {answer for pair in pairs for answer in pair} - set(positions)):
        raise ValueError(f"{sorted(unknown)} are not in {list(order)}")

    def distance(first: str, second: str) -> float:
        return abs(positions[first] - positions[second]) if positions else float(first != second)

    expected = Counter(expected for expected, _ in pairs)
    answered = Counter(other for _, other in pairs)
    observed = sum(distance(*pair) for pair in pairs) / len(pairs)
    chance_sum = sum(m * n * distance(a, b) for a, m in expected.items() for b, n in answered.items())
    return None if chance_sum == 0 else 1 - observed * len(pairs) ** 2 / chance_sum
