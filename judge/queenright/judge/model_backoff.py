"""When the rules replace a failing model, and for how long."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from queenright.judge.metrics import FallbackReason

WINDOW: Final = 3600.0
"""Seconds for which failures count, regardless of successes between them."""

_SPREAD_FACTOR: Final = 2
_MAX_CALLS: Final = 1_000


class ModelBackoff:
    """
    Counts failures. Too many start a pause; after it, one call tries the model again.

    A pause starts after ``failures`` consecutive failures, or after twice as many within an hour if they are
    half of the calls.

    Args:
        failures: Consecutive failures that start a pause.
    """

    def __init__(self, failures: int, pause_seconds: float, monotonic: Callable[[], float]) -> None:
        self._limit = failures
        self._pause = pause_seconds
        self._clock = monotonic
        self._consecutive = 0
        self._calls: deque[tuple[float, bool]] = deque(maxlen=_MAX_CALLS)
        """When each recent call ended, and whether it failed."""
        self._last: FallbackReason = "error"
        self._is_tripped = False
        self._until = 0.0
        self._before = (0, False)
        """
        The consecutive failures and the pause before the newest reply, to restore them if it is rejected.
        """
        self._is_undecided = False
        """Whether the newest reply only requests more data."""

    @property
    def reason(self) -> FallbackReason | None:
        """The last failure if the model is paused; None if it may be called."""
        return self._last if self._is_tripped and self._clock() < self._until else None

    def note_failure(self, reason: FallbackReason) -> bool:
        """Count a failure; return whether it starts a pause."""
        self._consecutive += 1
        self._last = reason
        self._is_undecided = False
        self._calls.append((self._clock(), True))
        if not (self._is_tripped or self._consecutive >= self._limit or self._fails_often()):
            return False
        self._is_tripped = True
        self._until = self._clock() + self._pause
        return True

    def note_reply(self) -> bool:
        """Count a reply; return whether it ends a pause."""
        self._before = self._consecutive, self._is_tripped
        self._consecutive = 0
        self._is_undecided = False
        was_tripped, self._is_tripped = self._is_tripped, False
        if was_tripped:
            self._calls.clear()
        self._calls.append((self._clock(), False))
        return was_tripped

    def note_undecided(self) -> None:
        """Note a reply that only requests more data. It does not count as success or failure yet."""
        self._is_undecided = True

    def reject_reply(self, reason: FallbackReason) -> bool:
        """Count the newest reply as a failure after all, but only once; return whether it starts a pause."""
        if self._is_undecided:
            return self.note_failure(reason)
        if not self._calls or self._calls[-1][1]:
            return False
        self._calls.pop()
        self._consecutive, self._is_tripped = self._before
        return self.note_failure(reason)

    def _fails_often(self) -> bool:
        while self._calls[0][0] <= self._clock() - WINDOW:
            self._calls.popleft()
        failures = sum(is_failure for _, is_failure in self._calls)
        return failures >= _SPREAD_FACTOR * self._limit and 2 * failures >= len(self._calls)
