"""When a rate limit ends, as far as a failed call of a model tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from queenright.health.vital_facts import seconds

_LONGEST: Final = 86_400.0
"""Seconds: a limit that lasts longer is no wait any more but a failure."""
_HEAD: Final = 2_000
_LIMITED: Final = re.compile(
    r"\b429\b|rate.?limit|too many requests|resource.?exhausted|quota|overloaded", re.IGNORECASE
)
_AGAIN: Final = re.compile(
    r"(?:try(?:ing)? again|retry(?:ing)?(?:.?after)?|resets?)\"?\s*(?:in|after|:|=)?\s*\"?"
    r"(?=\d)(?:(?P<h>\d{1,2})\s*h(?:ours?)?\s*)?(?:(?P<m>\d{1,3})\s*m(?:in(?:ute)?s?)?(?![a-z])\s*)?"
    r"(?:(?P<s>\d{1,6}(?:\.\d{1,6})?)\s*(?P<unit>ms|s\b|secs?\b|seconds?\b|(?![\d.:hm-])))?",
    re.IGNORECASE,
)


def limited_for(data: Mapping[str, Any]) -> float | None:
    """
    Return for how many seconds a failed call says that its model must be left alone; None if it does not.

    That is the field ``retry_after``, else what the words of a rate limit say ("try again in 1m30s").
    """
    text = f"{data.get('error_type') or ''} {str(data.get('error') or '')[:_HEAD]}"
    if _LIMITED.search(text) is None:
        return None
    told = seconds(data.get("retry_after"))
    if told is None and (found := _AGAIN.search(text)) is not None:
        hours, minutes, rest = (float(found[name] or 0) for name in ("h", "m", "s"))
        told = 3_600 * hours + 60 * minutes + (rest / 1_000 if found["unit"] == "ms" else rest)
    return told if told and told <= _LONGEST else None
