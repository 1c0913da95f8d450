"""How long a model that fails is still asked, before the rules answer for a while."""

from __future__ import annotations

from collections.abc import Callable

from queenright.judge.metrics import FallbackReason


class Patience:
    """
    Counts failures in a row. After so many the model is given a rest, and after the rest one more try.

    Args:
        failures: The last of so many in a row begins a rest.
        rest_seconds: How long it is.
        monotonic: The clock.
    """

    def __init__(self, failures: int, rest_seconds: float, monotonic: Callable[[], float]) -> None:
        self._limit = failures
        self._rest = rest_seconds
        self._clock = monotonic
        self._failures = 0
        self._last: FallbackReason = "error"
        self._until = 0.0

    @property
    def lost(self) -> FallbackReason | None:
        """What failed last if the model rests now; None if it may be asked."""
        resting = self._failures >= self._limit and self._clock() < self._until
        return self._last if resting else None

    def failed(self, reason: FallbackReason) -> bool:
        """Count a failure; return whether a rest begins with it."""
        self._failures += 1
        self._last = reason
        if self._failures < self._limit:
            return False
        self._until = self._clock() + self._rest
        return True

    def answered(self) -> bool:
        """Forget the failures; return whether the model had been given a rest."""
        rested, self._failures = self._failures >= self._limit, 0
        return rested
