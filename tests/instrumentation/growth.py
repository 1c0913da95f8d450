"""How the work for a text grows with its length."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SHORT: Final = 2_048
LONG: Final = 16_384
"""No part of a text that is looked at is longer, whatever the limits are."""


def growth(work: Callable[[str], object], text: Callable[[int], str]) -> float:
    """Return how much longer a long text takes than a short one: 8 times, or 64 for the square."""
    return _seconds(work, text(LONG)) / max(_seconds(work, text(SHORT)), 5e-5)


def _seconds(work: Callable[[str], object], text: str) -> float:
    """Return the least time of a few: nothing else on the machine adds to it."""
    found = []
    for _ in range(4):
        began = time.process_time()
        work(text)
        found.append(time.process_time() - began)
    return min(found)
