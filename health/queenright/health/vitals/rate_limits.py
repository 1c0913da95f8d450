"""Parse the end of a rate limit from a failed model call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

from queenright.health.vitals.vital_facts import parse_seconds
from queenright.runtime.timers import load_timezone

_MAX_SECONDS: Final = 8 * 86_400.0
"""The longest wait, in seconds. Limits last for at most a week; a longer one counts as a failure."""
_HEAD: Final = 2_000
_EARLIEST_EPOCH: Final = 1e9

_LIMIT_TEXT: Final = re.compile(
    r"\b429\b|(?:rate|usage|request|token|hit your|session|weekly).{0,12}limit|too many requests"
    r"|resource.?exhausted|quota|overloaded|throttl",
    re.IGNORECASE,
)
_SEPARATOR: Final = r"(?:\\?[\"'])?\s*[:=]?\s*(?:\\?[\"'])?"
_UNIT: Final = r"(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)"
_PART: Final = rf"\d{{1,9}}(?:\.\d{{1,9}})?\s*{_UNIT}(?![a-z])"
_DURATION: Final = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,9}})?)\s*({_UNIT})(?![a-z])", re.IGNORECASE)
_ISO: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d| UTC)"
_HTTP_DATE: Final = r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"

_WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY: Final = (
    r"(?:(?P<weekday>mon|tues?|wed|thu(?:rs?)?|fri|sat|sun|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b\.?"
    rf"|(?P<month>{'|'.join(_MONTHS)})[a-z]{{0,6}}\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:)"
    r"|(?P<tomorrow>tomorrow)\b)"
)
_CLOCK: Final = (
    r"(?:(?P<hour>\d{1,2})(?::(?P<minute>\d\d))? ?(?P<half>[ap])\.?m\b\.?"
    r"|(?P<hour24>\d{1,2}):(?P<minute24>\d\d)(?![:\d]))"
    r"(?: ?\((?P<zone>[A-Za-z_]+(?:/[A-Za-z_]+)*)\)| (?P<utc>UTC|GMT)\b)?"
)

# The time of the next call takes precedence over the time at which a limit resets.
_FIELDS: Final = (
    re.compile(rf"retry-?_?after-?_?ms{_SEPARATOR}(?P<ms>\d{{1,9}}(?:\.\d{{1,9}})?)", re.IGNORECASE),
    re.compile(
        rf"retry[-_ ]?(?:after|delay)(?:[-_ ]?seconds?)?{_SEPARATOR}"
        rf"(?:(?P<parts>{_PART}(?:,?\s*(?:and\s*)?{_PART})*)|(?P<date>{_HTTP_DATE}|{_ISO})"
        r"|(?P<bare>\d{1,9}(?:\.\d{1,9})?)(?![\d:\w]|\.\d))",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?:try(?:ing)? again|retry(?:ing)?|resets?|available(?: again)?|wait|reset(?:[-_][a-z]{1,16}){0,3})"
        rf"{_SEPARATOR}(?:in|after|for|at|on)?\s*(?:about\s*)?"
        rf"(?:(?P<parts>{_PART}(?:,?\s*(?:and\s*)?{_PART})*)|(?P<date>{_HTTP_DATE}|{_ISO})|(?P<epoch>1\d{{9}}(?:\d{{3}})?)\b"
        rf"|(?:{_DAY})?(?:,? ?(?:at ?)?{_CLOCK})?"
        r"(?(weekday)|(?(month)|(?(tomorrow)|(?(hour)|(?(hour24)|(?!)))))))",
        re.IGNORECASE,
    ),
    re.compile(rf"rate-?limit-reset(?:-after)?{_SEPARATOR}(?P<bare>\d{{1,9}})(?![:\w]|\.\d)", re.IGNORECASE),
    re.compile(r"\|(?P<epoch>1\d{9})\b"),
)
_UNIT_SECONDS: Final = {"ms": 0.001, "mi": 60.0, "m": 60.0, "s": 1.0, "h": 3_600.0, "d": 86_400.0}


def parse_rate_limit_seconds(data: Mapping[str, Any], at: float) -> float | None:
    """
    Return the seconds until a rate limit ends, as stated by a failed call, or None if it does not state them.

    The seconds come from the field ``retry_after``, otherwise from the error text. Examples: ``try again in
    1m30s``, ``"retryDelay": "34s"``, ``retry-after: Wed, 21 Oct 2026 07:28:00 GMT``, ``resets 3pm
    (Europe/Berlin)``, ``usage limit reached|1774051200``, ``resets Nov 28 at 3pm``. A clock time without a
    time zone is in this machine's zone. The result is None if the wait is longer than eight days.

    Args:
        data: The event's data: ``error_type``, ``error``, and ``retry_after`` in seconds.
        at: When the call failed, in seconds since the epoch.
    """
    # Whitespace is collapsed so that patterns do not backtrack.
    text = " ".join(f"{data.get('error_type') or ''} {data.get('error') or ''}"[:_HEAD].split())
    if _LIMIT_TEXT.search(text) is None:
        return None
    wait = parse_seconds(data.get("retry_after"))
    if wait is None:
        wait = next(
            (seconds for field in _FIELDS if (seconds := _find_first_wait(field, text, at)) is not None), None
        )
    return wait if wait is not None and 0 < wait <= _MAX_SECONDS else None


def _find_first_wait(field: re.Pattern[str], text: str, at: float) -> float | None:
    for match in field.finditer(text):
        wait = _parse_wait(match.groupdict(), at)
        if wait is not None:
            return wait
    return None


def _parse_wait(match: Mapping[str, str | None], at: float) -> float | None:
    """Return the seconds of a match, or None if they are unknown."""
    if parts := match.get("parts"):
        return sum(float(number) * _convert_unit(unit) for number, unit in _DURATION.findall(parts))
    if bare := match.get("bare"):
        number = float(bare)
        return number - at if number > _EARLIEST_EPOCH else number
    if ms := match.get("ms"):
        return float(ms) / 1_000
    if epoch := match.get("epoch"):
        return (float(epoch) / 1_000 if len(epoch) > 10 else float(epoch)) - at
    if date := match.get("date"):
        try:
            moment = (
                parsedate_to_datetime(date)
                if date.endswith("GMT")
                else datetime.fromisoformat(date.replace("Z", "+00:00").replace(" UTC", "+00:00"))
            )
        except ValueError:
            return None
        return moment.timestamp() - at
    return _parse_clock_time(match, at)


def _convert_unit(unit: str) -> float:
    unit = unit.lower()
    return _UNIT_SECONDS.get("ms" if unit.startswith(("ms", "mil")) else unit[0], 1.0)


def _parse_clock_time(match: Mapping[str, str | None], at: float) -> float | None:
    """Return the seconds until the next matching day and time. A day without a time means its beginning."""
    half = (match.get("half") or "").lower()
    hour = int(match.get("hour") or match.get("hour24") or 0)
    minute = int(match.get("minute") or match.get("minute24") or 0)
    has_day = any(match.get(key) for key in ("weekday", "month", "tomorrow"))
    has_clock = bool(half or match.get("hour24"))
    if not (has_day or has_clock) or minute > 59 or not (1 <= hour <= 12 if half else hour <= 23):
        return None
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    try:
        zone = load_timezone(name) if (name := match.get("zone") or match.get("utc")) else None
    except (KeyError, ValueError, OSError):
        zone = None
    try:
        now = datetime.fromtimestamp(at, zone) if zone else datetime.fromtimestamp(at).astimezone()
        moment = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        if weekday := match.get("weekday"):
            moment += timedelta(days=(_WEEKDAYS.index(weekday.lower()[:3]) - now.weekday()) % 7)
        elif month := match.get("month"):
            moment = moment.replace(month=_MONTHS.index(month.lower()) + 1, day=int(match.get("day") or 0))
            moment = moment if moment > now else moment.replace(year=now.year + 1)
        elif match.get("tomorrow"):
            moment += timedelta(days=1)
        if moment <= now:
            moment += timedelta(days=7 if match.get("weekday") else 1)
        return moment.timestamp() - at
    except (ValueError, OSError, OverflowError):
        return None
