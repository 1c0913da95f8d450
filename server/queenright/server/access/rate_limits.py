"""Rate limits: a token bucket for each caller. Memory is bounded."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

REQUESTS_PER_SECOND: Final = 2000.0
"""Far above what the console, the command line and scrapers need; only a client in a loop reaches it."""
REQUEST_BURST: Final = 4000
FAILED_LOGINS_PER_MINUTE: Final = 20.0
"""A person mistypes a few times. A token has 256 bits, so the limit protects the log more than the token."""
MAX_CALLERS: Final = 10_000


class RateLimit:
    """
    Allows each caller ``burst`` requests at once, and ``rate`` per second after that.

    Beyond ``limit`` callers, the least recently seen is dropped, which gives it a full bucket.

    Args:
        rate: Requests per second.
        burst: Requests at once after a pause.
        monotonic: A monotonic clock, in seconds.
        limit: Callers to remember.
    """

    def __init__(
        self, rate: float, burst: float, *, monotonic: Callable[[], float], limit: int = MAX_CALLERS
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._most = limit
        self._tokens_left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens_left)

    def take(self, caller: Hashable) -> float:
        """Count a request; return 0 if it is allowed, else the seconds to wait."""
        now = self._monotonic()
        remaining, at = self._tokens_left.pop(caller, (self._burst, now))
        remaining = min(self._burst, remaining + (now - at) * self._rate)
        wait = 0.0
        if remaining >= 1:
            remaining -= 1
        else:
            wait = (1 - remaining) / self._rate
        self._tokens_left[caller] = (remaining, now)
        if len(self._tokens_left) > self._most:
            self._tokens_left.popitem(last=False)
        return wait


def retry_after(seconds: float) -> str:
    """Format a ``Retry-After`` header: whole seconds, at least one."""
    return str(max(1, math.ceil(seconds)))
