"""How long a model that fails is still asked, before the rules answer for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from queenright.judge.metrics import FallbackReason

WINDOW: Final = 3600.0
"""Failures are remembered for so many seconds, whatever was answered between."""

_TIMES: Final = 2
_MOST: Final = 1_000


class ModelBackoff:
    """
    Counts failures. After too many the model is given a rest, and after the rest one more try.

    Too many are ``failures`` in a row; or twice as many within an hour if they are half of the calls: a model
    that answers now and then makes everybody wait as well.

    Args:
        failures: The last of so many in a row begins a rest.
        rest_seconds: How long it is.
        monotonic: The clock.
    """

    def __init__(self, failures: int, rest_seconds: float, monotonic: Callable[[], float]) -> None:
        self._limit = failures
        self._rest = rest_seconds
        self._clock = monotonic
        self._in_a_row = 0
        self._calls: deque[tuple[float, bool]] = deque(maxlen=_MOST)
        """When a call ended, and whether it failed."""
        self._last: FallbackReason = "error"
        self._rested = False
        self._until = 0.0
        self._before = (0, False)
        """What an answer forgot: failures in a row, and whether there was a rest."""
        self._looked = False
        """Whether the newest call was an answer that decides nothing."""

    @property
    def lost(self) -> FallbackReason | None:
        """What failed last if the model rests now; None if it may be asked."""
        return self._last if self._rested and self._clock() < self._until else None

    def failed(self, reason: FallbackReason) -> bool:
        """Count a failure; return whether a rest begins with it."""
        self._in_a_row += 1
        self._last = reason
        self._looked = False
        self._calls.append((self._clock(), True))
        if not (self._rested or self._in_a_row >= self._limit or self._often()):
            return False
        self._rested = True
        self._until = self._clock() + self._rest
        return True

    def answered(self) -> bool:
        """Count an answer; return whether the model had been given a rest. Then it begins anew."""
        self._before = self._in_a_row, self._rested
        self._in_a_row = 0
        self._looked = False
        rested, self._rested = self._rested, False
        if rested:
            self._calls.clear()
        self._calls.append((self._clock(), False))
        return rested

    def looked(self) -> None:
        """Note an answer that asks for more to decide by: what comes of it shows whether it was one."""
        self._looked = True

    def refused(self, reason: FallbackReason) -> bool:
        """
        Count the newest answer as a failure after all; return whether a rest begins with it.

        Nothing is counted twice: a call that failed has been counted.
        """
        if self._looked:
            return self.failed(reason)
        if not self._calls or self._calls[-1][1]:
            return False
        self._calls.pop()
        self._in_a_row, self._rested = self._before
        return self.failed(reason)

    def _often(self) -> bool:
        while self._calls[0][0] <= self._clock() - WINDOW:
            self._calls.popleft()
        failures = sum(failed for _, failed in self._calls)
        return failures >= _TIMES * self._limit and 2 * failures >= len(self._calls)
