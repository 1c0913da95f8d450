"""How far back a PromQL query looks: found in its text, before anybody is asked."""

from __future__ import annotations

import re
from typing import Final

MOST_SECONDS: Final = 24 * 3600.0

# In the order in which they stand: a quote in a comment begins no string, nor a # in a string a comment.
_NO_CODE: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|' r"'(?:[^'\\\n]|\\.)*'|`[^`]*`|#[^\n]*")  # noqa: ISC001
_DURATION: Final = re.compile(r"(?<![\w.])((?:\d+(?:ms|[smhdwy]))+)(?!\w)")
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
# Since Prometheus 3 a range or an offset may be a bare number of seconds.
_NUMBER: Final = re.compile(r"(?:\[|:|\boffset\b)\s*[-+]?\s*([0-9][0-9_.eE+xXa-fA-F]*)\s*(?![\w.])")


def fault_of(promql: str, most: float = MOST_SECONDS) -> str:
    """Return why a query looks further back than ``most`` seconds in all, or empty if it does not."""
    code = _NO_CODE.sub('""', promql)
    if "@" in code:
        return "@ moves a query out of the time that may be looked at; leave it out"
    back = sum(_seconds(found) for found in _DURATION.findall(code))
    back += sum(_number(found) for found in _NUMBER.findall(code))
    if back > most:
        return (
            f"its ranges and offsets together look {back / 3600:.4g} h back; {most / 3600:g} h are the limit"
        )
    return ""


def _seconds(duration: str) -> float:
    return sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(duration))


def _number(text: str) -> float:
    try:
        return float(int(text, 0)) if text[:2].lower() == "0x" else float(text.replace("_", ""))
    except ValueError:
        return 0.0  # nothing that Prometheus takes
