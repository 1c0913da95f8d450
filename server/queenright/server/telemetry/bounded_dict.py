"""Bounded dictionaries."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def make_room(entries: dict[K, V], limit: int) -> None:
    """Drop the oldest entries until another one fits within ``limit``."""
    while len(entries) >= limit:
        del entries[next(iter(entries))]
