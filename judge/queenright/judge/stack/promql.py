"""Check how far back a PromQL query looks, before it is sent."""

from __future__ import annotations

import math
import re
from typing import Final

MAX_SECONDS: Final = 24 * 3600.0

# Match strings and comments together, because a quote in a comment does not start a string, and vice versa.
# There are two literals, because a single one would have to escape quotes of its own kind.
_STRINGS_AND_COMMENTS: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|' r"'(?:[^'\\\n]|\\.)*'|`[^`]*`|#[^\n]*")  # noqa: ISC001
_DURATION: Final = re.compile(r"(?:\d+(?:ms|[smhdwy]))+")
_PART: Final = re.compile(r"(\d+)(ms|[smhdwy])")
_SECONDS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "y": 31_536_000.0,
}
# A label may also have this name. It is then followed by a matcher or the next label.
_OFFSET: Final = re.compile(r"(?<![\w:.])offset(?![\w:])(?!\s*(?:=|!|,|\)))", re.IGNORECASE)
_OFFSET_VALUE: Final = re.compile(r"\s*[-+]?\s*([\w.]+)")


def find_query_fault(promql: str, *, range_seconds: float = 0.0) -> str:
    """
    Return why a query may look further back than allowed, or an empty string if it is allowed.

    The limit applies to the sum of ranges, subquery steps, offsets in both directions, and the query's own
    range.
    """
    code = _STRINGS_AND_COMMENTS.sub('""', promql)
    if "@" in code:
        return "@ is not allowed: it can move a query outside the allowed range"
    seconds_back = range_seconds
    for text in (*_find_ranges(code), *_find_offsets(code)):
        seconds = _parse_seconds(text)
        if seconds is None:
            duration = " ".join(text.split())[:40]
            return f"{duration!r} is not a plain duration; write it like 5m or 1h30m"
        seconds_back += seconds
    if seconds_back > MAX_SECONDS:
        parts = "range_minutes, ranges" if range_seconds else "ranges"
        limit = f"at most {MAX_SECONDS / 3600:g} h"
        return f"its {parts} and offsets together look {seconds_back / 3600:.4g} h back; {limit}"
    return ""


def _find_ranges(code: str) -> list[str]:
    """Return each range in brackets, and the range and step of each subquery."""
    texts = []
    for remainder in code.split("[")[1:]:
        inside, _, _ = remainder.partition("]")
        span, colon, step = inside.partition(":")
        texts.append(span)
        if colon and step.strip():
            texts.append(step)
    return texts


def _find_offsets(code: str) -> list[str]:
    """Return the word after each ``offset``."""
    texts = []
    for offset in _OFFSET.finditer(code):
        word = _OFFSET_VALUE.match(code, offset.end())
        texts.append(word[1] if word is not None else code[offset.end() : offset.end() + 40])
    return texts


def _parse_seconds(text: str) -> float | None:
    """
    Return the seconds of a duration or, since Prometheus 3, of a bare number. Return None if it is neither.
    """
    text = text.strip()
    if _DURATION.fullmatch(text):
        return sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    try:
        seconds = float(int(text, 16)) if text[:2].lower() == "0x" else float(text.replace("_", ""))
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
