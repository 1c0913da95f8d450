"""
Circuit breakers whose states survive a restart. Each change of state is stored in one transaction with its
event.

A breaker changes immediately, and is written afterwards. So an unavailable database delays no call, and
pending changes are written as soon as it is available again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

import orjson
from sqlalchemy import Connection, delete, insert, select

from queenright.health.breakers.circuit_breaker import BreakerChange, BreakerStatus
from queenright.health.breakers.registry import BreakerRegistry
from queenright.health.breakers.state_machine import BreakerState
from queenright.health.settings import CircuitBreakerSettings
from queenright.health.store.event_log import append_events
from queenright.health.store.store import Store, StoreError
from queenright.health.store.tables import BREAKERS
from queenright.instrumentation.identity import new_id
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)

_WRITE_BATCH_SIZE: Final = 200
_MAX_PENDING: Final = 10_000
_CHECK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0
_MAX_RETRY_SECONDS: Final = 30.0


class BreakerStore:
    """
    A registry of breakers that is persisted in the store. Use it from one event loop; its breakers may be
    used from any thread.

    Args:
        publish: Receives events once they are durable (``EventBus.fan_out``).
        sleep: Waits before a failed write is retried.
    """

    def __init__(
        self,
        store: Store,
        *,
        settings: CircuitBreakerSettings,
        clock: Clock,
        monotonic: Clock = time.monotonic,
        publish: Callable[..., None],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.registry = BreakerRegistry(
            settings, clock=clock, monotonic=monotonic, on_change=self._queue_change
        )
        self.dropped_changes = 0
        """The number of changes that were never written, because too many were pending."""
        self._store = store
        self._publish = publish
        self._sleep = sleep
        self._lock = threading.Lock()
        self._pending: deque[tuple[BreakerChange, AgentEvent]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._write_task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def load(self) -> None:
        """
        Restore the breakers. An open breaker stays open for the rest of its timeout.

        Changes that were queued before the load are written now.

        Raises:
            StoreError: The store cannot be read.
        """
        for status in await self._store.read(_load):
            self.registry.restore(status)
        self._loop = asyncio.get_running_loop()
        self._start_writing()

    async def run(self) -> None:
        """
        Make open breakers half-open when their timeout is over, even if they are never called. Runs forever.

        Otherwise a worker with a breaker that is never called would count as failing forever.
        """
        while True:
            await self._sleep(_CHECK_SECONDS)
            self.registry.half_open_if_due()

    async def flush(self) -> None:
        """Wait until every change so far is written or dropped."""
        while self._write_task is not None and not self._write_task.done():
            await asyncio.wait([self._write_task])

    async def close(self) -> None:
        """Write pending changes once. Changes that cannot be written are logged as lost."""
        self._is_closed = True
        if self._write_task is not None:
            self._write_task.cancel()
            await asyncio.wait([self._write_task])
        try:
            while self._pending:
                await self._write_batch()
        except StoreError as error:
            _log.error("%d circuit breaker changes are lost: %s", len(self._pending), error)
            self._pending.clear()

    def _queue_change(self, change: BreakerChange) -> None:
        """Queue a change. Called from any thread."""
        event = self._build_event(change)
        with self._lock:
            if len(self._pending) >= _MAX_PENDING:
                self._pending.popleft()
                self.dropped_changes += 1
            self._pending.append((change, event))
        if self._loop is not None and not self._is_closed:
            try:
                self._loop.call_soon_threadsafe(self._start_writing)
            except RuntimeError:  # the event loop is closed, because the process is exiting
                self._is_closed = True

    def _start_writing(self) -> None:
        if self._pending and not self._is_closed and (self._write_task is None or self._write_task.done()):
            self._write_task = asyncio.get_running_loop().create_task(self._write(), name="breakers")

    async def _write(self) -> None:
        pause = _RETRY_SECONDS
        while self._pending:
            try:
                await self._write_batch()
            except StoreError as error:
                if pause == _RETRY_SECONDS:
                    _log.error("cannot write circuit breaker changes, retrying: %s", error)
                await self._sleep(pause)
                pause = min(2 * pause, _MAX_RETRY_SECONDS)
            else:
                pause = _RETRY_SECONDS

    async def _write_batch(self) -> None:
        with self._lock:
            batch = list(islice(self._pending, _WRITE_BATCH_SIZE))
        await self._store.transact(lambda conn: _write(conn, batch))
        with self._lock:
            for written in batch:
                # The change may have been dropped in the meantime, because the queue was full.
                if self._pending and self._pending[0] is written:
                    self._pending.popleft()
        self._publish(*(event for _, event in batch))

    def _build_event(self, change: BreakerChange) -> AgentEvent:
        status = change.status
        return AgentEvent(
            id=new_id(),
            type=EventType.CIRCUIT_BREAKER_STATE_CHANGED,
            time=change.at,
            agent_id=status.agent_id,
            data={
                "name": status.name,
                "kind": status.kind,
                "from": change.before.value,
                "to": status.state.value,
                "reason": status.reason,
                "failures": change.failures,
            },
        )


def _write(conn: Connection, changes: Sequence[tuple[BreakerChange, AgentEvent]]) -> None:
    for change, _ in changes:
        _save(conn, change.status, change.at)
    append_events(conn, [event for _, event in changes])


def _save(conn: Connection, status: BreakerStatus, at: float) -> None:
    """Store a breaker's state at ``at``, in seconds since the epoch. A closed breaker has no row."""
    conn.execute(delete(BREAKERS).where(BREAKERS.c.name == status.name))
    if status.state is BreakerState.CLOSED:
        return
    conn.execute(
        insert(BREAKERS).values(
            name=status.name, state=status.state.value, updated_at=at, body=orjson.dumps(status).decode()
        )
    )


def _load(conn: Connection) -> list[BreakerStatus]:
    """Return the breakers that are not closed, oldest change first. Unreadable rows are logged."""
    statuses = []
    for row in conn.execute(select(BREAKERS).order_by(BREAKERS.c.updated_at, BREAKERS.c.name)):
        try:
            statuses.append(_parse(orjson.loads(row.body)))
        except (ValueError, TypeError, KeyError) as error:
            _log.warning("circuit breaker %r cannot be read and starts closed: %r", row.name, error)
    return statuses


def _parse(body: dict[str, Any]) -> BreakerStatus:
    return BreakerStatus(**{**body, "state": BreakerState(body["state"])})
