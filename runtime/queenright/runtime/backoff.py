"""How long to leave somebody alone who is overloaded."""

from __future__ import annotations

from random import Random


def backoff(
    attempt: int, *, base: float = 1.0, cap: float = 60.0, retry_after: float | None = None, random: Random
) -> float:
    """
    Return how many seconds to wait before asking again.

    Half of it is fixed and half is drawn, so that many who failed together do not come back together.

    Args:
        attempt: How many attempts failed before the last one: 0 after the first failure.
        base: The longest wait after the first failure; it doubles with each.
        cap: The longest wait of all.
        retry_after: What the other side asked for; never less than this.
        random: Where the jitter comes from.
    """
    longest = min(cap, base * 2.0 ** min(max(attempt, 0), 64))
    return max(longest * (0.5 + random.random() / 2), retry_after or 0.0)
