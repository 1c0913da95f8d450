"""Measure how the work for a text grows with its length."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SHORT_LENGTH: Final = 2_048
LONG_LENGTH: Final = 16_384
"""Longer than any part of a text that is examined, whatever the limits are."""


def is_linear(work: Callable[[str], object], make_text: Callable[[int], str]) -> bool:
    """Return whether a text of 8 times the length takes clearly less than 64 times as long."""
    short_text, long_text = make_text(SHORT_LENGTH), make_text(LONG_LENGTH)
    # The minimum of a few runs excludes the other load of the machine.
    fastest_short = min(_measure_seconds(work, short_text) for _ in range(3))
    return any(_measure_seconds(work, long_text) < 24 * max(fastest_short, 5e-5) for _ in range(4))


def _measure_seconds(work: Callable[[str], object], text: str) -> float:
    start = time.process_time()
    work(text)
    return time.process_time() - start
