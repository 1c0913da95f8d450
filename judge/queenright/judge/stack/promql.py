"""How far back a PromQL query looks: found in its text, before anybody is asked."""

from __future__ import annotations

import math
import re
from typing import Final

MOST_SECONDS: Final = 24 * 3600.0

# In the order in which they stand: a quote in a comment begins no string, nor a # in a string a comment.
_NO_CODE: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|' r"'(?:[^'\\\n]|\\.)*'|`[^`]*`|#[^\n]*")  # noqa: ISC001
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
# Keywords are read in any case. A label may be called so, too: then a matcher or the next label follows.
_OFFSET: Final = re.compile(r"(?<![\w:.])offset(?![\w:])(?!\s*(?:=|!|,|\)))", re.IGNORECASE)
_BY_HOW_MUCH: Final = re.compile(r"\s*[-+]?\s*([\w.]+)")


def fault_of(promql: str, most: float = MOST_SECONDS, *, range_seconds: float = 0.0) -> str:
    """
    Return why a query looks further back than it may, or may do so for all that can be told; empty if not.

    What counts is the sum of all that could add up: its ranges and the steps in them, its offsets, forward
    or back, and the time over which it is asked.

    Args:
        promql: The query.
        most: Seconds.
        range_seconds: Over how long it is asked.
    """
    code = _NO_CODE.sub('""', promql)
    if "@" in code:
        return "@ moves a query out of the time that may be looked at; leave it out"
    back = range_seconds
    for text in (*_in_brackets(code), *_offsets(code)):
        seconds = _seconds(text)
        if seconds is None:
            shown = " ".join(text.split())[:40]
            return f"{shown!r} is no plain duration, such as 5m or 1h30m, so how far it looks is not known"
        back += seconds
    if back > most:
        of = "range_minutes, ranges" if range_seconds else "ranges"
        return f"its {of} and offsets together look {back / 3600:.4g} h back; {most / 3600:g} h are the limit"
    return ""


def _in_brackets(code: str) -> list[str]:
    """Return what stands in brackets: ranges, and ranges and steps of subqueries."""
    found = []
    for begun in code.split("[")[1:]:
        inside, _, _ = begun.partition("]")
        span, colon, step = inside.partition(":")
        found.append(span)
        if colon and step.strip():
            found.append(step)
    return found


def _offsets(code: str) -> list[str]:
    """Return what follows each ``offset``, as far as one word goes."""
    found = []
    for offset in _OFFSET.finditer(code):
        word = _BY_HOW_MUCH.match(code, offset.end())
        found.append(word[1] if word is not None else code[offset.end() : offset.end() + 40])
    return found


def _seconds(text: str) -> float | None:
    """Return the seconds of a duration or, since Prometheus 3, of a bare number; None if it is neither."""
    text = text.strip()
    if _DURATION.fullmatch(text):
        return sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    try:
        seconds = float(int(text, 16)) if text[:2].lower() == "0x" else float(text.replace("_", ""))
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
