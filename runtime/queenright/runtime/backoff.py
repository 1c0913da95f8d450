"""Exponential backoff with jitter."""

from __future__ import annotations

from random import Random


def backoff(
    attempt: int, *, base: float = 1.0, cap: float = 60.0, retry_after: float | None = None, random: Random
) -> float:
    """
    Return the number of seconds to wait before the next attempt.

    Half of it is fixed and half is random, so that clients that failed together do not retry together.

    Args:
        attempt: Number of earlier failures: 0 after the first one.
        base: Maximum wait after the first failure, in seconds; doubles with each further one.
        cap: Limit of that doubling, in seconds.
        retry_after: Minimum wait that the server requested, in seconds; may exceed ``cap``.
        random: Source of the random half.
    """
    longest = min(cap, base * 2.0 ** min(max(attempt, 0), 64))
    return max(longest * (0.5 + random.random() / 2), retry_after or 0.0)
