"""The store in a SQLite file: file, lock and pragmas."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError

from queenright.health.store.database import Database, NoDatabaseError, StoreError, engine_options
from queenright.runtime.storage.files import ExecutionLock, FileLockedError

_PRAGMAS: Final = (
    "journal_mode=WAL",
    "foreign_keys=ON",
    # On macOS, fsync() alone does not write to the disk.
    "fullfsync=ON",
    # With the default of 1,000 pages, checkpoints of scattered index pages take a fifth of the time.
    "wal_autocheckpoint=4000",
    "journal_size_limit=67108864",
    "cache_size=-32768",
)

_ROOM: Final = 1_048_576
"""Free bytes after which a full disk counts as writable again: the largest body that the API accepts."""


class SqliteDatabase(Database):
    """
    A database in a file.

    Args:
        read_only: Do not lock, create or migrate; for reading a running service's database.
        busy_timeout: How many seconds to wait for another program's lock.

    Raises:
        StoreError: The database cannot be used.
    """

    another = "another path"

    def __init__(self, address: URL, *, read_only: bool, busy_timeout: float) -> None:
        super().__init__()
        self._path = _path(address)
        self.name = str(self._path)
        self._lock: ExecutionLock | None = None
        self._full: bool | None = None
        self._changes = 0
        try:
            with self._explaining_file_errors(read_only):
                if read_only:
                    self._path.open("rb").close()
                else:
                    self._prepare_file()
            self._open(address.set(database=self.name), read_only, busy_timeout)
        except BaseException:
            self.close()
            raise

    def _open(self, address: URL, read_only: bool, busy_timeout: float) -> None:
        try:
            self.reader = self._engine(address, busy_timeout, writes=False)
            if read_only:
                self.check_readable()
                return
            self.writer = self._engine(address, busy_timeout, writes=True).connect()
            self.set_durability(full=True)
            self.bring_up_to_date(self.writer)
        except DBAPIError as error:
            raise self.explain(error) from error

    def set_durability(self, *, full: bool) -> None:
        """Implement ``Database``; the connection to a file never breaks."""
        if full != self._full:
            self._raw.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
            self._full = full
        self._changes = self._raw.total_changes

    def has_written(self) -> bool:
        """Implement ``Database``."""
        return self._raw.total_changes > self._changes

    def has_room(self) -> bool:
        """Implement ``Database``: a small write may fit into a full disk's last page, a batch does not."""
        try:
            with tempfile.TemporaryFile(dir=self._path.parent, buffering=0) as file:
                # Random, because a file system may compress zeros.
                return file.write(os.urandom(_ROOM)) == _ROOM
        except OSError:
            return False

    def cause(self, error: DBAPIError) -> str:
        """Implement ``Database``: SQLite's messages have no values."""
        return str(error.orig)

    def remedy(self, why: str) -> str:
        """Implement ``Database``."""
        if "locked" in why:
            return "another program holds it; close that program"
        if "disk is full" in why:
            return "free space on its volume; what is stored is kept, and writing resumes by itself"
        if "not a database" in why or "malformed" in why:
            return "it is damaged or not a SQLite database; restore a backup, or move it away for a new one"
        return "check the disk and the file's permissions"

    def identity(self) -> str:
        """Implement ``Database``: the same file may have several paths."""
        file = self._path.stat()
        return f"{file.st_dev}:{file.st_ino}"

    def advance_sequence(self, conn: Connection, table: Table) -> None:
        """Implement ``Database``; the engine looks for the highest number itself."""

    def is_unavailable(self, error: DBAPIError) -> bool:
        """Implement ``Database``: the disk is full, another program has the lock, the file is damaged."""
        # A damaged file is a plain ``DatabaseError``.
        return isinstance(error, OperationalError) or type(error) is DatabaseError

    def close(self) -> None:
        """Close every connection, readers first, so that the last one merges the write-ahead log."""
        super().close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def _raw(self) -> sqlite3.Connection:
        raw = self.writer.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        return raw

    def _prepare_file(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Agents' data is private. SQLite gives its other files the same mode.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        # SQLite lets two processes take turns, but each service would have its own state of the tickets.
        path = self._path.resolve()
        try:
            self._lock = ExecutionLock.take(Path(f"{path}.lock"))
        except FileLockedError as error:
            who = f" (process {error.pid})" if error.pid is not None else ""
            raise StoreError(
                f"another queenright{who} is using {path}; stop it, or give this one another database"
            ) from None

    @contextlib.contextmanager
    def _explaining_file_errors(self, read_only: bool) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if not read_only:
                raise StoreError(f"cannot create {self.name}: {error.strerror}; give another path") from error
            raise NoDatabaseError(
                f"there is no database at {self.name}; start the service first, or give its path"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot {'read' if read_only else 'write'} {self.name}: {error.strerror}; "
                "give a path to a file that this user may use"
            ) from error

    def _engine(self, address: URL, busy_timeout: float, *, writes: bool) -> Engine:
        engine = create_engine(
            address,
            # One thread uses it at a time, but not always the one that opened it.
            connect_args={"check_same_thread": False, "timeout": busy_timeout},
            **engine_options(),
        )
        event.listen(engine, "connect", _on_connect if writes else _on_connect_reader)
        # The driver would begin a transaction at the first write only: no snapshot, and a write that
        # may fail half-way because another program took the lock.
        event.listen(engine, "begin", _begin_immediate if writes else _begin)
        return self._keep(engine)


def _path(address: URL) -> Path:
    if address.database in (None, "", ":memory:") or address.query:
        raise StoreError(
            f"{address.render_as_string(hide_password=True)} names no file, and a store outlives "
            "its process; write sqlite:///path/to/queenright.db"
        )
    return Path(address.database or "").absolute()


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _on_connect_reader(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")


def _begin(conn: Connection) -> None:
    conn.exec_driver_sql("BEGIN")


def _begin_immediate(conn: Connection) -> None:
    conn.exec_driver_sql("BEGIN IMMEDIATE")
