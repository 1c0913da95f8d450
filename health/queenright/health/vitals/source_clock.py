"""The elapsed time between a worker's events, on the clock of their source."""

from __future__ import annotations

from typing import Final

from queenright.health.settings import CLOCK_TOLERANCE_SECONDS

_MAX_STEP_SECONDS: Final = 86_400.0
"""A longer step between two events means that the clock was set, not that the worker paused."""


class SourceClock:
    """
    Counts the seconds between a worker's events on the clock of their source.

    Events may arrive late and in batches, and the source's clock may be years off. Neither changes the time
    between events. A clock that is set back adds nothing.
    """

    __slots__ = ("_furthest", "_is_ahead", "_last", "elapsed")

    def __init__(self) -> None:
        self.elapsed = 0.0
        """Seconds since the first event. The value never decreases."""
        self._last: float | None = None
        self._furthest = 0.0
        self._is_ahead = False

    def advance(self, time: float, at: float) -> None:
        """
        Count the time until an event.

        Args:
            time: When the event happened, on its source's clock.
            at: When the event happened or arrived, on the service's clock.
        """
        last, was_ahead = self._last, self._is_ahead
        ahead = time - at
        self._is_ahead = ahead > CLOCK_TOLERANCE_SECONDS
        if last is None:
            self._last = self._furthest = time
            return
        if last - CLOCK_TOLERANCE_SECONDS <= time <= last:
            return  # parallel work: its events arrive out of order
        self._last = time
        # If an event with a slower clock arrived in between, do not count the same time twice.
        start = self._furthest if last < self._furthest < time else last
        step = time - start
        if self._is_ahead and not was_ahead:
            step -= ahead  # the clock was set forward, or the event has another clock
        if 0.0 < step <= _MAX_STEP_SECONDS:
            self.elapsed += step
        if time > self._furthest:
            self._furthest = time

    def restart(self) -> None:
        """Count only from the next event, because the host slept or its clock was set."""
        self._last = None
