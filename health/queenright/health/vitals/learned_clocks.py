"""
The usual durations of an agent's tool calls, model calls and pauses. They adjust the limits of silence.

The limits are settings. With enough samples, the usual duration shortens or lengthens a limit, within bounds
that are also settings. The sessions of an agent share the samples. After a restart, samples are read from the
event log.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from queenright.health.settings import LearnedClockSettings

_MAX_KEYS: Final = 16
"""The maximum number of tools and models per agent. Any others are ignored."""
_MIN_SECONDS: Final = 1.0
"""Shorter durations count as this many seconds."""
_BOUNDS: Final = tuple(2 ** (step / 2) for step in range(33))
"""Durations are counted up to these bounds, in seconds: half an octave each, from one second to 18 hours."""
SAMPLES: Final = 30
"""The minimum number of samples for a limit, so that outliers can be ignored."""
_MAX_COUNT: Final = 255
_USUAL: Final = 0.5
_P99: Final = 0.99
_OUTLIERS: Final = 2
_MARGIN: Final = 3.0
"""The learned limit is this multiple of the 99th percentile."""


class LearnedLimit(NamedTuple):
    """A learned limit. Times are in seconds."""

    limit: float
    configured_limit: float
    usual: float
    """The median of the samples."""
    calls: int
    """The number of samples, which is at most some hundreds."""


class Usual(NamedTuple):
    """The usual range of a value, in the unit of its samples."""

    usual: float
    """The median of the samples."""
    p99: float
    """The 99th percentile. The two largest samples are left out, because hangs are not usual."""
    times: int


class LearnedClocks:
    """The durations of an agent's tools, models and pauses, in a few hundred bytes."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, bytearray] = {}

    def learn(self, key: str, seconds: float) -> None:
        """Add a duration in seconds."""
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= _MAX_KEYS:
                return
            counts = self._counts[key] = bytearray(len(_BOUNDS))
        index = 0 if seconds <= _MIN_SECONDS else min(bisect_left(_BOUNDS, seconds), len(_BOUNDS) - 1)
        if counts[index] == _MAX_COUNT:
            for other, count in enumerate(counts):
                counts[other] = (count + 1) // 2  # keep rare values
        counts[index] += 1

    def usual(self, key: str) -> Usual | None:
        """Return the usual range of a duration, or None if there are too few samples."""
        counts = self._counts.get(key)
        if counts is None or (calls := sum(counts)) < SAMPLES:
            return None
        return Usual(
            _find_quantile(counts, _USUAL * calls),
            _find_quantile(counts, min(_P99 * calls, calls - _OUTLIERS)),
            calls,
        )

    def limit(self, key: str, configured_limit: float, settings: LearnedClockSettings) -> LearnedLimit | None:
        """
        Return the learned limit, within the bounds of the settings, or None if there are too few samples.
        """
        usual = self.usual(key)
        if usual is None:
            return None
        seconds = _MARGIN * usual.p99
        limit = min(max(seconds, settings.shortest * configured_limit), settings.longest * configured_limit)
        return LearnedLimit(limit, configured_limit, usual.usual, usual.times)


def _find_quantile(counts: bytearray, share: float) -> float:
    """Return the lowest bound that at least ``share`` samples do not exceed."""
    total = 0
    for bound, count in zip(_BOUNDS, counts, strict=True):
        total += count
        if total >= share:
            return bound
    return _BOUNDS[-1]
