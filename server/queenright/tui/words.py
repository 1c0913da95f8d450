"""Times, numbers and texts as the terminal shows them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

# All control characters but new line: they could move the cursor, or tell the terminal to do things.
_CONTROL: Final = {number: " " for number in (*range(32), *range(127, 160)) if chr(number) != "\n"}
_BARS: Final = "▁▂▃▄▅▆▇█"
_NOTHING: Final = "·"


def plain(text: object) -> str:
    """Return a text of a model, a tool or a person as a terminal may be given it; lines stay lines."""
    return str(text).translate(_CONTROL)


def clipped(text: object, most: int) -> str:
    """Return a text on one line, of at most ``most`` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= most else line[: max(most - 1, 0)].rstrip() + "…"


def ago(seconds: float | None) -> str:
    """Return a time span as people say it: ``4 s``, ``3 min``, ``2 h``; a dash for none."""
    if seconds is None:
        return "-"
    for size, name, most in ((1, "s", 90), (60, "min", 5_400), (3_600, "h", 129_600)):
        if seconds < most:
            return f"{max(seconds, 0) / size:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"


def clock_time(moment: float) -> str:
    """Return the time of day, UTC."""
    return f"{datetime.fromtimestamp(moment, UTC):%H:%M:%S}"


def amount(number: float) -> str:
    """Return a number in at most five characters: ``950``, ``12.3k``, ``4.5M``."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.1f}{name}"
    return f"{number:.0f}"


def spark(numbers: Iterable[float], width: int) -> str:
    """
    Return the last ``width`` numbers as bars, the highest of them as the highest bar.

    Nothing is a dot on the line, so that it cannot be taken for a little.
    """
    shown = list(numbers)[-width:]
    most = max(shown, default=0)
    bars = (
        _BARS[min(len(_BARS) - 1, int((number / most) * len(_BARS)))] if number > 0 else _NOTHING
        for number in shown
    )
    return "".join(bars).rjust(width, _NOTHING)
