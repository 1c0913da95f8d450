"""Decide when the rules replace a failing model, and for how long."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from queenright.judge.metrics import FallbackReason

WINDOW: Final = 3600.0
"""The seconds for which failures count, regardless of successes between them."""

_SPREAD_FACTOR: Final = 2
_MAX_CALLS: Final = 1_000


class ModelBackoff:
    """
    Counts failures. Too many failures start a pause, after which one call tries the model again.

    A pause starts after ``failures`` consecutive failures, or after twice as many within an hour if these are
    half of the calls.

    Args:
        failures: The number of consecutive failures that starts a pause.
    """

    def __init__(self, failures: int, pause_seconds: float, monotonic: Callable[[], float]) -> None:
        self._limit = failures
        self._pause = pause_seconds
        self._clock = monotonic
        self._consecutive = 0
        self._calls: deque[tuple[float, bool]] = deque(maxlen=_MAX_CALLS)
        """When each recent call ended, and whether it failed."""
        self._last_reason: FallbackReason = "error"
        self._is_tripped = False
        self._paused_until = 0.0
        self._previous_state = (0, False)
        """
        The consecutive failures and whether the model was paused before the newest reply, which are restored
        if it is rejected.
        """
        self._is_undecided = False
        """Whether the newest reply only requests more data."""

    @property
    def reason(self) -> FallbackReason | None:
        """The reason of the last failure while the model is paused; None if it may be called."""
        return self._last_reason if self._is_tripped and self._clock() < self._paused_until else None

    def note_failure(self, reason: FallbackReason) -> bool:
        """Count a failure, and return whether it starts a pause."""
        self._consecutive += 1
        self._last_reason = reason
        self._is_undecided = False
        self._calls.append((self._clock(), True))
        if not (self._is_tripped or self._consecutive >= self._limit or self._fails_often()):
            return False
        self._is_tripped = True
        self._paused_until = self._clock() + self._pause
        return True

    def note_reply(self) -> bool:
        """Count a reply, and return whether it ends a pause."""
        self._previous_state = self._consecutive, self._is_tripped
        self._consecutive = 0
        self._is_undecided = False
        was_tripped, self._is_tripped = self._is_tripped, False
        if was_tripped:
            self._calls.clear()
        self._calls.append((self._clock(), False))
        return was_tripped

    def note_undecided(self) -> None:
        """
        Note that the newest reply only requests more data, so it counts as neither success nor failure yet.
        """
        self._is_undecided = True

    def reject_reply(self, reason: FallbackReason) -> bool:
        """Count the newest reply as a failure instead, at most once. Return whether this starts a pause."""
        if self._is_undecided:
            return self.note_failure(reason)
        if not self._calls or self._calls[-1][1]:
            return False
        self._calls.pop()
        self._consecutive, self._is_tripped = self._previous_state
        return self.note_failure(reason)

    def _fails_often(self) -> bool:
        while self._calls[0][0] <= self._clock() - WINDOW:
            self._calls.popleft()
        failures = sum(is_failure for _, is_failure in self._calls)
        return failures >= _SPREAD_FACTOR * self._limit and 2 * failures >= len(self._calls)
