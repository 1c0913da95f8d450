"""How much one caller may ask: a bucket of tokens for each, filled at a steady rate. Memory is bounded."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

MAX_CALLERS: Final = 10_000


class RateLimit:
    """
    Lets ``burst`` requests through at once, and ``rate`` a second after that, for each caller by itself.

    Of more than ``most`` callers the one seen longest ago is forgotten, which gives it a full bucket.

    Args:
        rate: Requests a second.
        burst: Requests at once after a pause.
        monotonic: Seconds from anywhere.
        limit: Callers that are remembered.
    """

    def __init__(
        self, rate: float, burst: float, *, monotonic: Callable[[], float], limit: int = MAX_CALLERS
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._most = limit
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def take(self, caller: Hashable) -> float:
        """Count a request; return 0 if it may pass, else after how many seconds one may."""
        now = self._monotonic()
        left, at = self._left.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        wait = 0.0
        if left >= 1:
            left -= 1
        else:
            wait = (1 - left) / self._rate
        self._left[caller] = (left, now)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return wait


def retry_after(seconds: float) -> str:
    """Return a time as the header ``Retry-After`` has it: whole seconds, at least one."""
    return str(max(1, math.ceil(seconds)))
