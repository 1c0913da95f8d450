"""Times as texts."""

from __future__ import annotations

from datetime import UTC, datetime

from queenright.instrumentation.durations import format_duration


def ago(seconds: float | None) -> str:
    """Return a time span as text; a dash for None."""
    return "-" if seconds is None else format_duration(seconds)


def clock_time(moment: float) -> str:
    """Return the time of day, UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")
