"""When delivery to a peer is retried after a failure: exponential backoff with jitter."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

_FIRST_BACKOFF_SECONDS: Final = 1.0
_MAX_BACKOFF_SECONDS: Final = 30.0
# Shorter for a refused connection, which is cheap, so that a peer that has just started is reached quickly.
_UNREACHED_BACKOFF_SECONDS: Final = 5.0


def retry_jitter() -> float:
    """Return a random factor between 0.8 and 1.2."""
    return random.uniform(0.8, 1.2)


class DeliveryRetry:
    """The time of the next attempt after failures; 0 if the last attempt succeeded."""

    def __init__(self, jitter: Callable[[], float] = retry_jitter) -> None:
        self.next_attempt_at = 0.0
        self._jitter = jitter
        self._failures = 0

    def is_backing_off(self, now: float) -> bool:
        """Return whether the backoff after a failure is still running."""
        # The upper bound covers a clock that was set back.
        return now < self.next_attempt_at <= now + 2 * _MAX_BACKOFF_SECONDS

    def schedule(self, now: float, *, was_reached: bool) -> None:
        """Schedule the next attempt after a failure."""
        limit = _MAX_BACKOFF_SECONDS if was_reached else _UNREACHED_BACKOFF_SECONDS
        pause = min(_FIRST_BACKOFF_SECONDS * 2 ** min(self._failures, 10), limit)
        self._failures += 1
        self.next_attempt_at = now + pause * self._jitter()

    def reset(self) -> None:
        """Forget earlier failures after a success."""
        self._failures, self.next_attempt_at = 0, 0.0
