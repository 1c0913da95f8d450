"""
Timers: the times at which an entry point is due, by interval or cron.

Timers do not drift and do not catch up: ticks missed while the process was busy are counted as skipped.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock

_MAX_SLEEP_SECONDS: Final = 30.0
"""Longest sleep of a cron timer: the wall clock may be set, or the machine suspended, during it."""

_MAX_SKIPPED_TICKS: Final = 10_000
_TOLERANCE: Final = 1e-6
"""Tolerance in intervals: a tick that is due just now has not passed."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick of a timer. ``skipped_ticks`` is the number of missed ticks before it."""

    number: int
    skipped_ticks: int = 0


def load_timezone(name: str) -> tzinfo:
    """
    Return a time zone by its name.

    Raises:
        KeyError: The name is unknown, or the machine has no time zone database.
        ValueError: The text is not a valid name.
        OSError: The name is that of a folder of the database.
    """
    # Small images have no database. UTC, the default, needs none.
    return UTC if name == "UTC" else ZoneInfo(name)


async def iterate_interval_ticks(seconds: float, *, monotonic: Clock, sleep: Sleep) -> AsyncIterator[Tick]:
    """Yield at ``t0 + k * seconds``; a slow consumer does not delay later ticks."""
    t0 = monotonic()
    number = 0
    while True:
        number += 1
        past_ticks = math.ceil((monotonic() - t0) / seconds - _TOLERANCE) - 1
        skipped_ticks = max(0, past_ticks - number + 1)
        number += skipped_ticks
        await sleep(max(0.0, t0 + number * seconds - monotonic()))
        yield Tick(number, skipped_ticks)


async def iterate_cron_ticks(
    expression: str, timezone: str, *, clock: Clock, sleep: Sleep
) -> AsyncIterator[Tick]:
    """
    Yield at the times of a cron expression, by the wall clock of ``timezone``.

    Daylight saving time is handled as in Debian's cron. A clock that is set back repeats no tick.
    """
    from cronsim import CronSim

    zone = load_timezone(timezone)
    number = 0
    last_time = clock()
    while True:
        # The later of the two: a clock set back must not repeat a tick.
        due_times = CronSim(expression, datetime.fromtimestamp(max(last_time, clock()), zone))
        due_at = next(due_times).timestamp()
        while (remaining := due_at - clock()) > 0:
            await sleep(min(remaining, _MAX_SLEEP_SECONDS))
        skipped_ticks = 0
        for moment in due_times:
            if moment.timestamp() > clock() or skipped_ticks >= _MAX_SKIPPED_TICKS:
                break
            due_at, skipped_ticks = moment.timestamp(), skipped_ticks + 1
        last_time = due_at
        number += 1 + skipped_ticks
        yield Tick(number, skipped_ticks)
