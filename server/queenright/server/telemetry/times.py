"""Correct impossible times of observations. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.values import FUTURE_LIMIT, MAX_DURATION

_FUTURE: Final = round(FUTURE_LIMIT * 1e9)
_PAST: Final = round(MAX_DURATION * 1e9)
"""Nanoseconds. Exporters do not hold records for a year."""


def correct_times(observation: Observation, now: int) -> str:
    """
    Replace impossible times of an observation; return what was wrong, or an empty string.

    An impossible end becomes ``now``, its arrival in nanoseconds since the epoch, and a start that is
    impossible or after the end becomes the end. Missing times stay missing.
    """
    start, end = observation.start, observation.end
    at = end or start
    if not at:
        return ""
    earliest, latest = now - _PAST, now + _FUTURE
    if earliest <= at <= latest and (earliest <= start <= at or not start):
        return ""
    duration = end - start if start and end else -1
    if not earliest <= at <= latest:
        problem = f"{'ends' if end else 'begins'} at {_text(at)}, but arrived at {_text(now)}"
        at = now
    else:
        problem = f"begins at {_text(start)} and ends at {_text(end)}"
    observation.end = at if end else 0
    if 0 <= duration <= _FUTURE and at == now:
        observation.start = at - duration  # its clock is off, and its duration is known
    else:
        observation.start = at
        if "duration" in observation.data:
            observation.data["duration"] = None
    what = f"span {observation.span_id.hex()}" if observation.span_id else "a record"
    return f"{what} of scope {observation.library!r} {problem}"


def _text(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
