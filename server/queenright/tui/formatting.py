"""Formatting of times, numbers and text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from queenright.instrumentation.control_characters import CONTROL_CHARACTERS

_CONTROL: Final = {number: " " for number in CONTROL_CHARACTERS if chr(number) != "\n"}
_BARS: Final = "▁▂▃▄▅▆▇█"
_ZERO: Final = "·"


def strip_control(text: object) -> str:
    """Return text with control characters, except new lines, replaced by spaces."""
    return str(text).translate(_CONTROL)


def clip(text: object, width: int) -> str:
    """Return text on one line of at most ``width`` characters."""
    line = " ".join(strip_control(text).split())
    return line if len(line) <= width else line[: max(width - 1, 0)].rstrip() + "…"


def format_clock_time(moment: float) -> str:
    """Return the UTC time of day."""
    return f"{datetime.fromtimestamp(moment, UTC):%H:%M:%S}"


def format_short_number(number: float) -> str:
    """Return a number as ``950``, ``12.3k`` or ``4.5M``."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.1f}{name}"
    return f"{number:.0f}"


def sparkline(numbers: Iterable[float], width: int) -> str:
    """
    Return the last ``width`` numbers as bars, scaled to the largest; zero is a dot.
    """
    tail = list(numbers)[-width:]
    largest = max(tail, default=0)
    bars = (
        _BARS[min(len(_BARS) - 1, int((number / largest) * len(_BARS)))] if number > 0 else _ZERO
        for number in tail
    )
    return "".join(bars).rjust(width, _ZERO)
