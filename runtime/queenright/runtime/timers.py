"""
Timers: when an entry point is due, by interval or by cron.

Neither drifts, and neither catches up: moments that passed while the process was held up are
counted as skipped and not made up for.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock

_LONGEST_SLEEP: Final = 30.0
"""A cron timer looks at the wall clock so often, because that can be set, or stand still, meanwhile."""

_MOST_SKIPPED: Final = 10_000
_SLACK: Final = 1e-6
"""Of an interval: a moment that is due just now has not passed."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One moment at which a timer is due. ``skipped``: how many before it passed unnoticed."""

    number: int
    skipped: int = 0


async def interval_ticks(seconds: float, *, monotonic: Clock, sleep: Sleep) -> AsyncIterator[Tick]:
    """Yield at ``t0 + k * seconds``; whoever takes long over one tick moves no later one."""
    t0 = monotonic()
    number = 0
    while True:
        number += 1
        passed = math.ceil((monotonic() - t0) / seconds - _SLACK) - 1
        skipped = max(0, passed - number + 1)
        number += skipped
        await sleep(max(0.0, t0 + number * seconds - monotonic()))
        yield Tick(number, skipped)


async def cron_ticks(expression: str, timezone: str, *, clock: Clock, sleep: Sleep) -> AsyncIterator[Tick]:
    """
    Yield at the moments that a cron expression names, by the wall clock of ``timezone``.

    Summer time is treated as Debian's cron does it. A clock that is set back fires nothing twice.
    """
    from cronsim import CronSim

    zone = ZoneInfo(timezone)
    number = 0
    last = clock()
    while True:
        # From the later of the two: a clock set back must not repeat what has fired.
        coming = CronSim(expression, datetime.fromtimestamp(max(last, clock()), zone))
        due = next(coming).timestamp()
        while (left := due - clock()) > 0:
            await sleep(min(left, _LONGEST_SLEEP))
        skipped = 0
        for moment in coming:
            if moment.timestamp() > clock() or skipped >= _MOST_SKIPPED:
                break
            due, skipped = moment.timestamp(), skipped + 1
        last = due
        number += 1 + skipped
        yield Tick(number, skipped)
