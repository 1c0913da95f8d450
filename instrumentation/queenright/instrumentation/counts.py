"""Format counts for people."""

from __future__ import annotations


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Format a number of things: ``1 ticket``, ``12,345 tokens``. The plural adds an s by default."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
