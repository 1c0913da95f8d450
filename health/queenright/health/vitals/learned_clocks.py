"""
Usual durations of an agent's tool calls, model calls and pauses, which adjust the limits of silence.

The limits are settings. With enough samples, the usual duration shortens or lengthens them within bounds that
are settings too. Sessions of an agent share the samples; after a restart they are read from the event log.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from queenright.health.settings import LearnedClockSettings

_MAX_KEYS: Final = 16
"""Maximum tools and models per agent; further ones are not learned."""
_MIN_SECONDS: Final = 1.0
"""Seconds. Shorter durations get no learned limit."""
_BOUNDS: Final = tuple(2 ** (step / 2) for step in range(33))
"""Durations are counted up to these bounds, in seconds: half an octave each, from one second to 18 hours."""
SAMPLES: Final = 30
"""Minimum samples for a limit: enough to ignore the outliers."""
_MAX_COUNT: Final = 255
_USUAL: Final = 0.5
_SELDOM_LONGER: Final = 0.99
_OUTLIERS: Final = 2
_MARGIN: Final = 3.0
"""A call is suspect if it takes this many times the 99th percentile."""


class LearnedLimit(NamedTuple):
    """A limit that was learned; all times in seconds."""

    limit: float
    configured_limit: float
    usual: float
    """Half took no longer."""
    calls: int
    """How many of the last were timed, some hundreds at most."""


class Usual(NamedTuple):
    """The usual range of a value, in the unit of its samples."""

    usual: float
    """Median of the samples."""
    p99: float
    """99th percentile, without the two largest samples: a few hangs are not usual."""
    times: int


class LearnedClocks:
    """The durations of one agent, by what took so long: a few hundred bytes."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, bytearray] = {}

    def learn(self, what: str, seconds: float) -> None:
        """Note how long something took, in seconds."""
        counts = self._counts.get(what)
        if counts is None:
            if len(self._counts) >= _MAX_KEYS:
                return
            counts = self._counts[what] = bytearray(len(_BOUNDS))
        index = 0 if seconds <= _MIN_SECONDS else min(bisect_left(_BOUNDS, seconds), len(_BOUNDS) - 1)
        if counts[index] == _MAX_COUNT:
            for other, count in enumerate(counts):
                counts[other] = (count + 1) // 2  # keep rare values
        counts[index] += 1

    def usual(self, what: str) -> Usual | None:
        """Return what is usual of something; None if it was noted too rarely."""
        counts = self._counts.get(what)
        if counts is None or (calls := sum(counts)) < SAMPLES:
            return None
        return Usual(
            _quantile(counts, _USUAL * calls),
            _quantile(counts, min(_SELDOM_LONGER * calls, calls - _OUTLIERS)),
            calls,
        )

    def limit(
        self, what: str, configured_limit: float, settings: LearnedClockSettings
    ) -> LearnedLimit | None:
        """Return the limit for something, within the bounds of the settings; None if too little is known."""
        usual = self.usual(what)
        if usual is None:
            return None
        seconds = _MARGIN * usual.p99
        limit = min(max(seconds, settings.shortest * configured_limit), settings.longest * configured_limit)
        return LearnedLimit(limit, configured_limit, usual.usual, usual.times)


def _quantile(counts: bytearray, share: float) -> float:
    """Return the bound that so many of what was counted do not exceed."""
    total = 0
    for bound, count in zip(_BOUNDS, counts, strict=True):
        total += count
        if total >= share:
            return bound
    return _BOUNDS[-1]
