"""Time elapsed by the clock of a worker's own events."""

from __future__ import annotations

from typing import Final

from queenright.health.settings import CLOCK_TOLERANCE_SECONDS

_MAX_STEP_SECONDS: Final = 86_400.0
"""A longer step between two events means that the clock was set, not that the worker paused."""


class SourceClock:
    """
    Counts the seconds between a worker's events by their author's clock.

    Events may arrive late and together, and their author's clock may be years off: neither changes the
    time between them. A clock that is set back adds nothing.
    """

    __slots__ = ("_furthest", "_is_ahead", "_last", "elapsed")

    def __init__(self) -> None:
        self.elapsed = 0.0
        """Seconds since the first event. It never goes back."""
        self._last: float | None = None
        self._furthest = 0.0
        self._is_ahead = False

    def advance(self, time: float, at: float) -> None:
        """
        Count the time until an event.

        Args:
            time: When it happened, by its author's clock.
            at: When it happened or arrived, by ours.
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
        # A second clock that is behind has reported in between: do not count the same time twice.
        start = self._furthest if last < self._furthest < time else last
        step = time - start
        if self._is_ahead and not was_ahead:
            step -= ahead  # the clock was set forward, or the event has another clock
        if 0.0 < step <= _MAX_STEP_SECONDS:
            self.elapsed += step
        if time > self._furthest:
            self._furthest = time

    def restart(self) -> None:
        """Count from the next event: the host slept, or its clock was set."""
        self._last = None
