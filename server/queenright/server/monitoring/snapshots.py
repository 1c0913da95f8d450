"""Snapshots of the workers, which a restart or a takeover begins with instead of a day of the event log."""

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
"""If few events come. Those of a minute are read within seconds, as many as one process can take."""
_EVENTS: Final = 20
"""After so many events, a snapshot is written sooner, so that takeovers in a row read few events again."""
_SHORTEST_SECONDS: Final = 2.0
"""At least so many seconds are between two snapshots."""
_GRACE_SECONDS: Final = 60.0
"""So long after it was stored, an event may still be observed."""
_PAUSE_FACTOR: Final = 200
"""The event loop spends half a percent of its time on snapshots, at most."""


@dataclass(kw_only=True, eq=False)
class Snapshots:
    """Writes snapshots of the workers: often while many events come. Belongs to one event loop."""

    store: Store
    monitor: HealthMonitor
    pipeline: EventPipeline
    feed: Feed
    _last_seq: int = field(default=0, init=False)
    _mark: tuple[int, float] = field(default=(0, 0.0), init=False)
    """The number of an event in the log, and a monotonic time by which it was stored."""

    async def run(self) -> None:
        """Take a snapshot of what has changed, again and again, until cancelled."""
        busy, taken_at = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(max(_SHORTEST_SECONDS, _PAUSE_FACTOR * busy))
            events, age = self.feed.head.seq - self._last_seq, time.monotonic() - taken_at
            if events >= _EVENTS or (events and age >= _INTERVAL_SECONDS):
                busy, taken_at = await self.take(), time.monotonic()

    async def take(self) -> float:
        """
        Write a snapshot, which replaces the last one. A failure is logged, and the last one stays.

        Returns:
            How many seconds of the processor the event loop has used for it.
        """
        if not self.monitor.settings.enabled or not self.store.is_writable:
            return 0.0
        # Not by the clock: on a busy machine, the thread waits for others meanwhile.
        snapshot_id, number, began = new_id(), 0, time.thread_time()
        head = self.pipeline.describe_position(self.feed.head.seq)
        snapshot = MonitorSnapshot(self.monitor)
        busy = time.thread_time() - began
        try:
            while True:
                began = time.thread_time()
                part = snapshot.next_part()
                busy += time.thread_time() - began
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
            _log.warning("no snapshot of the workers was written, the last one stays: %s", error)
            return busy
        except Exception:
            _log.exception("no snapshot of the workers was written, the last one stays")
            return busy
        finally:
            snapshot.close()
        marked_seq, marked_at = self._mark
        if (now := time.monotonic()) - marked_at >= _GRACE_SECONDS:
            self.pipeline.forget_unobserved(marked_seq)
            self._mark = head.seq, now
        self._last_seq = head.seq
        return busy
