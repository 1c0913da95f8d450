"""
Circuit breakers that survive the process: each change of state is one transaction with its event.

A breaker changes at once, and is written afterwards. So an unavailable database delays no call, and pending
changes are written once it is available again.
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

_QUERY_BATCH: Final = 200
_WAITING: Final = 10_000
_LOOK_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 30.0


class BreakerStore:
    """
    A registry of breakers that is persisted in the store. It belongs to one event loop; the breakers do not.

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
        """Changes that were never written, because too many waited for the database."""
        self._store = store
        self._publish = publish
        self._sleep = sleep
        self._lock = threading.Lock()
        self._waiting: deque[tuple[BreakerChange, AgentEvent]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def load(self) -> None:
        """
        Restore the breakers: an open breaker stays open for the rest of its timeout.

        Earlier changes are written now.

        Raises:
            StoreError: The store cannot be read.
        """
        for status in await self._store.read(_load):
            self.registry.restore(status)
        self._loop = asyncio.get_running_loop()
        self._write_soon()

    async def run(self) -> None:
        """
        Make open breakers half open when their timeout is over, even if they are never called. Runs forever.

        Otherwise a worker with such a breaker would count as failing forever.
        """
        while True:
            await self._sleep(_LOOK_SECONDS)
            self.registry.half_open_if_due()

    async def flush(self) -> None:
        """Return when every change so far is written or dropped."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    async def close(self) -> None:
        """Write waiting changes once. Those that fail are logged as lost."""
        self._is_closed = True
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        try:
            while self._waiting:
                await self._write_some()
        except StoreError as error:
            _log.error("%d changes of circuit breakers are lost: %s", len(self._waiting), error)
            self._waiting.clear()

    def _queue_change(self, change: BreakerChange) -> None:
        """Queue a change, from any thread."""
        event = self._event(change)
        with self._lock:
            if len(self._waiting) >= _WAITING:
                self._waiting.popleft()
                self.dropped_changes += 1
            self._waiting.append((change, event))
        if self._loop is not None and not self._is_closed:
            try:
                self._loop.call_soon_threadsafe(self._write_soon)
            except RuntimeError:  # the event loop is closed, because the process ends
                self._is_closed = True

    def _write_soon(self) -> None:
        if self._waiting and not self._is_closed and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="breakers")

    async def _write(self) -> None:
        pause = _PAUSE_SECONDS
        while self._waiting:
            try:
                await self._write_some()
            except StoreError as error:
                if pause == _PAUSE_SECONDS:
                    _log.error("changes of circuit breakers wait to be written: %s", error)
                await self._sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            else:
                pause = _PAUSE_SECONDS

    async def _write_some(self) -> None:
        with self._lock:
            batch = list(islice(self._waiting, _QUERY_BATCH))
        await self._store.transact(lambda conn: _write(conn, batch))
        with self._lock:
            for row in batch:
                # The breaker may have been evicted in the meantime.
                if self._waiting and self._waiting[0] is row:
                    self._waiting.popleft()
        self._publish(*(event for _, event in batch))

    def _event(self, change: BreakerChange) -> AgentEvent:
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
    """Store a breaker's state at a time, in seconds since the epoch. A closed breaker has no row."""
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
