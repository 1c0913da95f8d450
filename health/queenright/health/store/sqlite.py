"""The store in a SQLite file. It creates and locks the file, and sets the pragmas."""

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
    # With the default of 1,000 pages, a fifth of the time goes to checkpoints of scattered index pages.
    "wal_autocheckpoint=4000",
    "journal_size_limit=67108864",
    "cache_size=-32768",
)

_MIN_FREE_BYTES: Final = 1_048_576
"""The free bytes at which a full disk counts as writable again: the largest body that the API accepts."""


class SqliteDatabase(Database):
    """
    A database in a SQLite file.

    Args:
        read_only: Do not lock, create or migrate the database, so that a running service's database can be
            read.
        busy_timeout: The seconds to wait for another program's lock.

    Raises:
        StoreError: The database cannot be used.
    """

    another = "another path"

    def __init__(self, address: URL, *, read_only: bool, busy_timeout: float) -> None:
        super().__init__()
        self._path = _path(address)
        self.name = str(self._path)
        self._lock: ExecutionLock | None = None
        self._is_fully_durable: bool | None = None
        self._changes = 0
        try:
            with self._convert_file_errors(read_only):
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
            self.reader = self._create_engine(address, busy_timeout, writes=False)
            if read_only:
                self.check_readable()
                return
            self.writer = self._create_engine(address, busy_timeout, writes=True).connect()
            self.set_durability(full=True)
            self.bring_up_to_date(self.writer)
        except DBAPIError as error:
            raise self.explain(error) from error

    def set_durability(self, *, full: bool) -> None:
        """Implement ``Database``. The connection to a file never breaks."""
        if full != self._is_fully_durable:
            self._raw.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
            self._is_fully_durable = full
        self._changes = self._raw.total_changes

    def has_written(self) -> bool:
        """Implement ``Database``."""
        return self._raw.total_changes > self._changes

    def has_room(self) -> bool:
        """
        Implement ``Database``. On a full disk, a small write may still fit into the file's last page, but a
        batch does not.
        """
        try:
            with tempfile.TemporaryFile(dir=self._path.parent, buffering=0) as file:
                # Random bytes, because a file system may compress zeros.
                return file.write(os.urandom(_MIN_FREE_BYTES)) == _MIN_FREE_BYTES
        except OSError:
            return False

    def cause(self, error: DBAPIError) -> str:
        """Implement ``Database``. SQLite's messages contain no values."""
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
        """Implement ``Database``. The path does not suffice, because a file may have several."""
        file = self._path.stat()
        return f"{file.st_dev}:{file.st_ino}"

    def advance_sequence(self, conn: Connection, table: Table) -> None:
        """Implement ``Database``. SQLite finds the highest number itself."""

    def is_unavailable(self, error: DBAPIError) -> bool:
        """
        Implement ``Database``. This is so if the disk is full, another program has the lock, or the file is
        damaged.
        """
        # A damaged file raises ``DatabaseError`` itself, not a subclass.
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
        # The mode is 0600, because data of agents is private. SQLite gives its other files the same mode.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        # SQLite allows two processes to write in turn, but each service would have its own view of the
        # tickets.
        path = self._path.resolve()
        try:
            self._lock = ExecutionLock.take(Path(f"{path}.lock"))
        except FileLockedError as error:
            who = f" (process {error.pid})" if error.pid is not None else ""
            raise StoreError(
                f"another queenright{who} is using {path}; stop it, or give this one another database"
            ) from None

    @contextlib.contextmanager
    def _convert_file_errors(self, read_only: bool) -> Iterator[None]:
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

    def _create_engine(self, address: URL, busy_timeout: float, *, writes: bool) -> Engine:
        engine = create_engine(
            address,
            # One thread at a time uses a connection, but not always the thread that opened it.
            connect_args={"check_same_thread": False, "timeout": busy_timeout},
            **engine_options(),
        )
        event.listen(engine, "connect", _on_connect if writes else _on_connect_reader)
        # By default, the driver begins a transaction only at the first write. Reads would see no snapshot,
        # and a write could fail half-way because another program took the lock.
        event.listen(engine, "begin", _begin_immediate if writes else _begin)
        return self._register(engine)


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
