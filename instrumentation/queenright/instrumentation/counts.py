"""Format counts and lists of names for people."""

from __future__ import annotations

from collections.abc import Sequence


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Format a number of things: ``1 ticket``, ``12,345 tokens``. The plural adds an s by default."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_names(names: Sequence[str], more: int = 0) -> str:
    """Format names, and how many ``more`` there are: ``a``, ``a and b``, ``a, b and 3 more``."""
    more += len(names[2:])
    return f"{', '.join(names[:2])} and {more} more" if more else " and ".join(names)
