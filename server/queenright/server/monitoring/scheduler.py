"""Act on the deadlines of workers, tickets and interventions, and sweep all workers as a safety net."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Final

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.ticket_service import TicketService
from queenright.runtime.events import Clock
from queenright.server.metrics.metrics import ServiceMetrics
from queenright.server.monitoring.pipeline import EventPipeline
from queenright.server.monitoring.remediation import Remediation
from queenright.server.ops.arrivals import Gap

_log = logging.getLogger(__name__)

_MAX_SLEEP_SECONDS: Final = 1.0
_MIN_SLEEP_SECONDS: Final = 0.02

_OVERSLEEP_SECONDS: Final = 30.0
"""If a sleep of one second takes this long, no event could arrive during it."""

_JUMP_SECONDS: Final = 5.0
"""If wall and monotonic clock diverge by this much in a tick, the clock jumped or the host was suspended."""

_SWEEP_BATCH: Final = 500
"""Workers that a sweep evaluates between two iterations of the event loop: about 5 ms."""

_DUE_BATCH: Final = 200
"""Workers past a deadline that are evaluated between two iterations of the event loop: about 20 ms."""


@dataclass(kw_only=True, eq=False)
class Scheduler:
    """Acts on deadlines. An instance belongs to one event loop."""

    pipeline: EventPipeline
    monitor: HealthMonitor
    tickets: TicketService
    remediation: Remediation
    metrics: ServiceMetrics
    clock: Clock

    async def run_deadlines(self) -> None:
        """Act on each deadline when it passes, until cancelled. Wake at least once a second."""
        offset = self.clock() - time.monotonic()
        while True:
            sleep_started_at = time.monotonic()
            await asyncio.sleep(self._compute_pause())
            now, monotonic = self.clock(), time.monotonic()
            jump_seconds, slept_seconds = now - monotonic - offset, monotonic - sleep_started_at
            offset = now - monotonic
            if abs(jump_seconds) > _JUMP_SECONDS or slept_seconds > _OVERSLEEP_SECONDS:
                # Only the sleep is measured, because a slow iteration means a slow database, not a jump.
                self.handle_clock_jump(
                    now, jump_seconds if abs(jump_seconds) > _JUMP_SECONDS else slept_seconds
                )
            if not self.pipeline.check_listening(now):
                continue
            try:
                await self.pipeline.advance(now, _DUE_BATCH)
                await self.tickets.settle(now)
                await self.remediation.advance(now)
            except Exception:
                _log.exception("cannot act on a deadline, retrying at the next tick")

    def handle_clock_jump(self, now: float, jump_seconds: float) -> None:
        """Correct every age after a jump of the clock. ``jump_seconds`` is negative if it was set back."""
        self.monitor.handle_clock_jump(now)
        self.remediation.handle_clock_jump(now, jump_seconds)
        self.pipeline.arrivals.record_gap(Gap("jump", now - jump_seconds, now))

    def _compute_pause(self) -> float:
        parts = (self.monitor, self.tickets, self.remediation)
        deadlines = [deadline for part in parts if (deadline := part.next_deadline()) is not None]
        if not deadlines or not self.metrics.is_listening:
            return _MAX_SLEEP_SECONDS
        return min(max(min(deadlines) - self.clock(), _MIN_SLEEP_SECONDS), _MAX_SLEEP_SECONDS)

    async def run_sweeps(self) -> None:
        """Evaluate every worker periodically, in case a deadline was missed, until cancelled."""
        while True:
            if not self.pipeline.check_listening(self.clock()):
                await asyncio.sleep(_MAX_SLEEP_SECONDS)
                continue
            started_at = time.perf_counter()
            try:
                worker_count = await self.sweep()
                self.metrics.record_sweep(worker_count, time.perf_counter() - started_at)
                await self.remediation.check_all()
            except Exception:
                _log.exception("sweep failed, retrying at the next interval")
                self.metrics.record_sweep(0, time.perf_counter() - started_at, has_failed=True)
            await asyncio.sleep(self.monitor.settings.health_check.interval_seconds)

    async def sweep(self) -> int:
        """Evaluate every worker once. Return the number of workers."""
        return await self.pipeline.sweep(_SWEEP_BATCH)
