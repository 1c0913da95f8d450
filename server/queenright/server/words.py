"""Times as people say them."""

from __future__ import annotations

from datetime import UTC, datetime


def ago(seconds: float | None) -> str:
    """Return a time span as people say it: ``4 s``, ``3 min``, ``2 h``; a dash for none."""
    if seconds is None:
        return "-"
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds > 0 else "0 s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 129_600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} d"


def clock_time(moment: float) -> str:
    """Return the time of day, UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")


def moment(at: float) -> str:
    """Return day and time, UTC, for what may be on another day."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def clipped(text: str, most: int) -> str:
    """Return a text on one line, cut to ``most`` characters, where a word ends if one does so near there."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    kept = line[: most - 2]
    end = kept.rfind(" ")
    return f"{kept[:end] if end > most // 2 else kept} …"
