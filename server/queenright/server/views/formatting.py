"""Texts for pages: times, and texts without repeated sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from queenright.instrumentation.durations import format_duration

_SHORT: Final = 16
"""A shorter text may be part of another one by chance."""


def without_repeats(text: str, shown: Iterable[str]) -> str:
    """Return a text without the sentences of texts that are shown before it."""
    known = [_plain(one) for one in shown]
    lines = []
    for line in text.splitlines():
        sentences = re.split(r"(?<=[.!?…])\s+", line)
        left = [one for one in sentences if not _is_in(_plain(one), known)]
        if left or not line.strip():
            lines.append(" ".join(left) if len(left) < len(sentences) else line)
    return "\n".join(lines).strip("\n")


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".!?… ").casefold()


def _is_in(sentence: str, known: list[str]) -> bool:
    return any(sentence == one or (len(sentence) >= _SHORT and sentence in one) for one in known)


def ago(seconds: float | None) -> str:
    """Return a time span as text; a dash for None."""
    return "-" if seconds is None else format_duration(seconds)


def clock_time(moment: float) -> str:
    """Return the time of day, UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")


def moment(at: float) -> str:
    """Return date and time, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
