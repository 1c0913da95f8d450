"""Times as people say them."""

from __future__ import annotations

from datetime import UTC, datetime

from queenright.instrumentation.durations import format_duration


def ago(seconds: float | None) -> str:
    """Return a time span as people say it; a dash for none."""
    return "-" if seconds is None else format_duration(seconds)


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
