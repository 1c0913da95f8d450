"""
The store has all data that must outlive the process.

A single writer thread commits. It writes all queued appends in one transaction, so that they share the cost
of a commit, and resolves their futures after the commit. Readers have their own connections and threads, and
read a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, Self, TypeVar, Unpack

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from queenright.health.store.database import READERS, Database, DatabaseUnavailableError, StoreError
from queenright.health.store.engines import open_database
from queenright.health.store.event_log import (
    LogSegment,
    append_events,
    read_history,
    record_appends,
    touch_head,
)
from queenright.runtime.event_filter import Filters, build_where
from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType

__all__ = ["Store", "StoreError"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_GROUP_ROWS: Final = 2_000
"""The maximum number of rows in one transaction, which limits how long its first append waits."""


class RefusedEventsError(StoreError):
    """Raised when the database can never store these events."""


@dataclass(slots=True)
class _Append:
    events: Sequence[AgentEvent]
    also: Callable[[Connection], None] | None
    future: asyncio.Future[Any]


@dataclass(slots=True)
class _Transact:
    fn: Callable[[Connection], Any]
    future: asyncio.Future[Any]


_STOP: Final = object()
_Outcome = tuple["_Append | _Transact", Any, BaseException | None]


class Store:
    """
    An open database. The async methods belong to one event loop.

    Events of ``ALERT_CLASS``, events that are committed together with them, and every ``transact`` survive a
    power cut. Other events survive a crash of the process, but a power cut may lose the last of them.
    """

    def __init__(self, database: Database, *, read_only: bool = False, capacity: int = 20_000) -> None:
        self._database = database
        self._read_only = read_only
        self._capacity = capacity
        self._depth = 0
        self._room_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._has_closed = False
        self._shut_down = False
        self._shut_down_lock = threading.Lock()
        self._failure: StoreError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commit_listeners: list[Callable[[Sequence[LogSegment]], None]] = []
        self._commits: list[LogSegment] = []
        self._readers = ThreadPoolExecutor(READERS, "queenright-read")
        self._writer: threading.Thread | None = None
        if not read_only:
            self._writer = threading.Thread(target=self._write, name="queenright-write", daemon=True)
            self._writer.start()

    @classmethod
    def open(
        cls,
        url: str,
        *,
        read_only: bool = False,
        busy_timeout: float = 5.0,
        capacity: int = 20_000,
        member_id: str | None = None,
        partition: int = 0,
    ) -> Self:
        """
        Open the database at ``url`` and migrate its schema. A missing SQLite file is created.

        Args:
            url: ``sqlite:///relative/path``, ``sqlite:////absolute/path`` or ``postgresql://host/name``.
            read_only: Open the database only for reading, while another process may write to it.
            busy_timeout: The seconds to wait for another program's lock.
            capacity: The number of rows that may be queued before ``append`` waits.
            member_id: The member of a cluster that opens the database; PostgreSQL only.
            partition: The partition of a cluster; PostgreSQL only.

        Raises:
            StoreError: The database is unreachable, locked, in use, not writable or damaged, belongs to
                another program, or has a newer schema.
        """
        database = open_database(
            url,
            read_only=read_only,
            busy_timeout=busy_timeout,
            member_id=member_id,
            partition=partition,
        )
        return cls(database, read_only=read_only, capacity=capacity)

    def __repr__(self) -> str:
        return f"Store({self._database.name!r}, depth={self._depth})"

    @property
    def depth(self) -> int:
        """The number of rows and transactions that are queued or being written."""
        return self._depth

    @property
    def writer_token(self) -> str:
        """Identifies this writer of the database; see `Database.writer_token`."""
        return self._database.writer_token

    @property
    def former_lease_at(self) -> float | None:
        """
        When the former owner of the partition last renewed its lease, in seconds since the epoch, or None.
        """
        return self._database.former_lease_at

    @property
    def is_writable(self) -> bool:
        """Whether the last write succeeded. This does no I/O."""
        return self._failure is None

    @property
    def failure(self) -> StoreError | None:
        """Why the last write failed; None if it succeeded."""
        return self._failure

    def list_partitions(self) -> list[int]:
        """
        Return the numbers of the partitions in the database, from 0. It does blocking I/O, so call it in a
        thread.

        Raises:
            StoreError: The database cannot be read.
        """
        try:
            return self._database.list_partitions()
        except DBAPIError as error:
            raise self._make_error("read from", error) from error

    def on_commit(self, listener: Callable[[Sequence[LogSegment]], None]) -> None:
        """
        Call ``listener`` with every event that is appended to the event log, in the log's order.

        It runs on the event loop, after the commit and before the call of ``append`` or ``transact`` returns.
        It must be quick.
        """
        self._commit_listeners.append(listener)

    async def check_writable(self) -> None:
        """
        Check that the database is writable, with a write that changes nothing.

        Raises:
            StoreError: The database cannot be written.
        """
        await self.transact(touch_head)

    async def append(
        self, events: Sequence[AgentEvent], *, also: Callable[[Connection], None] | None = None
    ) -> None:
        """
        Append all or none of ``events`` to the event log, and return after the commit.

        This waits while the queue is full. Events that the log already has are ignored.

        Args:
            events: The events. If empty, nothing is done.
            also: Called in the same transaction, after the events are written.

        Raises:
            RefusedEventsError: The database refuses these events. Nothing was written.
            StoreError: Writing failed. Nothing was written.
        """
        if not events:
            return
        loop = self._require_loop()
        events = tuple(events)
        await self._reserve(loop, len(events))
        future: asyncio.Future[None] = loop.create_future()
        self._jobs.put(_Append(events, also, future))
        await future

    async def history(
        self,
        *,
        types: Collection[EventType] | None = None,
        session_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest: bool = True,
        **filters: Unpack[Filters],
    ) -> list[AgentEvent]:
        """
        Return events from the event log, oldest first; see ``EventBus.history``.

        Raises:
            UnknownEventError: The log has no event ``after``.
            StoreError: The database cannot be read.
        """
        where = dict(build_where(filters))
        if session_id is not None:
            where["session_id"] = session_id
        return await self.read(
            lambda conn: read_history(conn, types=types, where=where, after=after, limit=limit, newest=newest)
        )

    async def transact(self, fn: Callable[[Connection], T]) -> T:
        """
        Call ``fn`` in its own transaction in the writer thread, and return its result after the commit.

        An exception of ``fn`` rolls the transaction back and is raised to the caller.

        Raises:
            StoreError: The database cannot be written.
        """
        loop = self._require_loop()
        self._depth += 1
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Transact(fn, future))
        return await future

    async def read(self, fn: Callable[[Connection], T]) -> T:
        """
        Call ``fn`` with a snapshot of the database, in a reader thread.

        ``fn`` must return values, not open cursors.

        Raises:
            StoreError: The database cannot be read.
        """
        if self._has_closed:
            raise self._make_closed_error()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.read_now, fn)

    def read_now(self, fn: Callable[[Connection], T]) -> T:
        """
        Call ``fn`` with a snapshot of the database, without an event loop. Used by the CLI and at the start.
        """
        if self._shut_down:
            raise self._make_closed_error()
        try:
            with self._database.reader.connect() as conn:
                return fn(conn)
        except DBAPIError as error:
            raise self._make_error("read from", error) from error

    async def close(self) -> None:
        """
        Write the queue, then close the database. Appends that are still waiting for the queue are refused.
        """
        self._refuse_jobs()
        await asyncio.to_thread(self._close_database)

    def close_now(self) -> None:
        """Close without an event loop."""
        self._refuse_jobs()
        self._close_database()

    # -- the event loop's side ----------------------------------------------------------------------

    def _require_loop(self) -> asyncio.AbstractEventLoop:
        if self._has_closed:
            raise self._make_closed_error()
        if self._read_only:
            raise StoreError(f"{self._database.name} was opened read-only")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("the store is used by another event loop; open one store per loop")
            self._loop = loop
            self._depth = 0
        return loop

    async def _reserve(self, loop: asyncio.AbstractEventLoop, rows: int) -> None:
        """Wait until the queue has room for ``rows``, first come, first served, and reserve it."""
        if not self._room_waiters and self._fits(rows):
            self._depth += rows
            return
        room: asyncio.Future[None] = loop.create_future()
        entry = (rows, room)
        self._room_waiters.append(entry)
        try:
            await room
        except asyncio.CancelledError:
            if room.done() and not room.cancelled() and room.exception() is None:
                self._release(rows)
            else:
                with contextlib.suppress(ValueError):
                    self._room_waiters.remove(entry)
            raise

    def _fits(self, rows: int) -> bool:
        # An append that exceeds the capacity runs alone.
        return self._depth == 0 or self._depth + rows <= self._capacity

    def _release(self, rows: int) -> None:
        self._depth -= rows
        while self._room_waiters and self._fits(self._room_waiters[0][0]):
            rows, room = self._room_waiters.popleft()
            if not room.done():
                self._depth += rows
                room.set_result(None)

    def _resolve_jobs(self, outcomes: list[_Outcome], commits: Sequence[LogSegment]) -> None:
        for listener in self._commit_listeners if commits else ():
            try:
                listener(commits)
            except Exception:
                _log.exception("a listener of the event log failed")
        for job, result, error in outcomes:
            if not job.future.done():
                if error is None:
                    job.future.set_result(result)
                else:
                    job.future.set_exception(error)
            self._release(len(job.events) if isinstance(job, _Append) else 1)

    def _refuse_jobs(self) -> None:
        if not self._has_closed:
            self._has_closed = True
            while self._room_waiters:
                _, room = self._room_waiters.popleft()
                if not room.done():
                    room.set_exception(self._make_closed_error())

    def _close_database(self) -> None:
        with self._shut_down_lock:
            if self._shut_down:
                return
            if self._writer is not None:
                self._jobs.put(_STOP)
                self._writer.join()
            self._readers.shutdown()
            self._shut_down = True
            self._database.close()

    # -- the writer's side --------------------------------------------------------------------------

    def _write(self) -> None:
        next_job: Any = None
        while True:
            job = next_job if next_job is not None else self._jobs.get()
            next_job = None
            if job is _STOP:
                return
            if isinstance(job, _Transact):
                outcomes = [self._run(job)]
            else:
                group, next_job = self._gather(job)
                outcomes = self._append_group(group)
            commits, self._commits = self._commits, []
            # The loop may be closed. If so, no caller awaits the outcome.
            with contextlib.suppress(RuntimeError):
                job.future.get_loop().call_soon_threadsafe(self._resolve_jobs, outcomes, commits)

    def _gather(self, first: _Append) -> tuple[list[_Append], Any]:
        """
        Return the queued appends up to ``_GROUP_ROWS``, and the first job after them that is not an append,
        if any.
        """
        group, rows = [first], len(first.events)
        while rows < _GROUP_ROWS:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if not isinstance(job, _Append):
                return group, job
            group.append(job)
            rows += len(job.events)
        return group, None

    def _append_group(self, group: list[_Append]) -> list[_Outcome]:
        try:
            self._append(group)
        except StoreError as error:
            self._failure = error
            return [(job, None, error) for job in group]
        except Exception as error:
            if isinstance(error, DBAPIError) and self._database.is_unavailable(error):
                # The disk is full, or another program has the lock, so every append of the group fails.
                failure = self._failure = self._make_error("write to", error)
                return [(job, None, failure) for job in group]
            if len(group) > 1:
                # One of the appends may cause the failure, so write them one by one.
                return [outcome for job in group for outcome in self._append_group([job])]
            return [(group[0], None, self._make_error("write to", error, RefusedEventsError))]
        return [(job, None, None) for job in group]

    def _append(self, group: list[_Append]) -> None:
        events = list(chain.from_iterable(job.events for job in group))
        # Other systems may rely on a transaction that does more than append.
        is_full = any(job.also is not None for job in group)
        self._database.set_durability(full=is_full or any(event.type in ALERT_CLASS for event in events))

        def write(conn: Connection, *, fresh: bool) -> None:
            append_events(conn, events, fresh=fresh)
            for job in group:
                if job.also is not None:
                    job.also(conn)

        try:
            self._commit(partial(write, fresh=True))
        except IntegrityError:
            self._commit(partial(write, fresh=False))

    def _run(self, job: _Transact) -> _Outcome:
        try:
            self._database.set_durability(full=True)
        except BaseException as error:
            if isinstance(error, StoreError):
                self._failure = error
            return job, None, error
        try:
            return job, self._commit(job.fn), None
        except DBAPIError as error:
            failure = self._make_error("write to", error)
            if self._database.is_unavailable(error):
                self._failure = failure
            return job, None, failure
        except BaseException as error:
            return job, None, error

    def _commit(self, fn: Callable[[Connection], T]) -> T:
        with self._database.writer.begin():
            appends = record_appends(self._database.writer) if self._commit_listeners else []
            result = fn(self._database.writer)
            # A transaction without a write does not prove that the database is writable again.
            is_writable = self._failure is not None and self._database.has_written()
        self._commits += appends
        if is_writable and self._database.has_room():
            self._failure = None
        return result

    def _make_error(self, action: str, error: Exception, kind: type[StoreError] = StoreError) -> StoreError:
        cause = str(error)
        if isinstance(error, DBAPIError):
            cause = self._database.cause(error)
            if self._database.is_unavailable(error):
                cause += f"; {self._database.remedy(cause)}"
                kind = DatabaseUnavailableError
        failure = kind(f"cannot {action} {self._database.name}: {cause}")
        failure.__cause__ = error
        return failure

    def _make_closed_error(self) -> StoreError:
        return StoreError(f"the store of {self._database.name} is closed")
