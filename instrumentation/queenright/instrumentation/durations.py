"""Format durations for people."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """Format a duration: ``6 s``, ``4 min``, ``2.5 h``, ``3 d``."""
    seconds = max(seconds, 0.0)
    if seconds < 89.5:
        return f"{seconds:.0f} s"
    if seconds < 5_370:
        return f"{seconds / 60:.0f} min"
    if seconds < 129_600:
        return _format_decimal(seconds / 3_600, "h")
    return _format_decimal(seconds / 86_400, "d")


def _format_decimal(value: float, unit: str) -> str:
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"
