"""Write snapshots of the workers, so that a restart or takeover need not replay a day of the event log."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.monitor_snapshot import (
    MonitorSnapshot,
    SnapshotDiscardedError,
    compress_part,
)
from queenright.health.monitoring.snapshot_table import complete_snapshot, write_part
from queenright.health.store.store import Store, StoreError
from queenright.instrumentation.identity import new_id
from queenright.server.monitoring.pipeline import EventPipeline
from queenright.server.stream.feed import Feed

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS: Final = 60.0
"""Interval while few events arrive. Even at full load, a minute of events is replayed within seconds."""
_MAX_EVENTS: Final = 20
"""Number of events after which a snapshot is written early, so that repeated takeovers replay few events."""
_MIN_INTERVAL_SECONDS: Final = 2.0
"""Minimum seconds between snapshots."""
_GRACE_SECONDS: Final = 60.0
"""Seconds for which a stored event may still be unobserved by the monitor."""
_PAUSE_FACTOR: Final = 200
"""Minimum pause per second of CPU time: snapshots use at most half a percent of the event loop's time."""


@dataclass(kw_only=True, eq=False)
class Snapshots:
    """Writes snapshots of the workers, more often if many events arrive. Belongs to one event loop."""

    store: Store
    monitor: HealthMonitor
    pipeline: EventPipeline
    feed: Feed
    _last_seq: int = field(default=0, init=False)
    _mark: tuple[int, float] = field(default=(0, 0.0), init=False)
    """The sequence number of a logged event, and a monotonic time by which it was stored."""

    async def run(self) -> None:
        """Write snapshots when there are new events, until cancelled."""
        cpu_seconds, taken_at = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(max(_MIN_INTERVAL_SECONDS, _PAUSE_FACTOR * cpu_seconds))
            events, age = self.feed.head.seq - self._last_seq, time.monotonic() - taken_at
            if events >= _MAX_EVENTS or (events and age >= _INTERVAL_SECONDS):
                cpu_seconds, taken_at = await self.take(), time.monotonic()

    async def take(self) -> float:
        """
        Write a snapshot that replaces the last one. If this fails, log it and keep the last one.

        Returns:
            The CPU seconds that it took on the event loop.
        """
        if not self.monitor.settings.enabled or not self.store.is_writable:
            return 0.0
        # Measure CPU time, because on a busy machine the thread also waits for other threads.
        snapshot_id, number, started_at = new_id(), 0, time.thread_time()
        head = self.pipeline.describe_position(self.feed.head.seq)
        snapshot = MonitorSnapshot(self.monitor)
        cpu_seconds = time.thread_time() - started_at
        try:
            while True:
                started_at = time.thread_time()
                part = snapshot.next_part()
                cpu_seconds += time.thread_time() - started_at
                if part is None:
                    break
                number += 1
                data = await asyncio.to_thread(compress_part, part)
                await self.store.transact(
                    partial(write_part, snapshot_id=snapshot_id, number=number, data=data)
                )
            await self.store.transact(
                partial(complete_snapshot, snapshot_id=snapshot_id, parts=number, head=head)
            )
        except (StoreError, SnapshotDiscardedError) as error:
            _log.warning("cannot write a snapshot of the workers; the last one is kept: %s", error)
            return cpu_seconds
        except Exception:
            _log.exception("cannot write a snapshot of the workers; the last one is kept")
            return cpu_seconds
        finally:
            snapshot.close()
        marked_seq, marked_at = self._mark
        if (now := time.monotonic()) - marked_at >= _GRACE_SECONDS:
            self.pipeline.forget_unobserved(marked_seq)
            self._mark = head.seq, now
        self._last_seq = head.seq
        return cpu_seconds
