"""
Opening the database: address, file, lock, pragmas, migrations.

All SQL that only SQLite understands is here and in ``migrations/``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from queenright.health.tables import SCHEMA_REVISION
from queenright.instrumentation.errors import QueenrightError

if sys.platform != "win32":
    import fcntl

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_VERSION_TABLE: Final = "alembic_version"
_READERS: Final = 4

_PRAGMAS: Final = (
    "journal_mode=WAL",
    "foreign_keys=ON",
    # On macOS fsync() alone does not reach the disk.
    "fullfsync=ON",
    # With the default of 1,000 pages, checkpoints of the indexes' scattered pages take a fifth of the time.
    "wal_autocheckpoint=4000",
    "journal_size_limit=67108864",
    "cache_size=-32768",
)


class StoreError(QueenrightError):
    """Raised when the database cannot be opened, read or written; says what, where, and the way out."""


class FileLock:
    """
    An exclusive lock beside the database, held while this process writes to it.

    SQLite itself lets two processes take turns; two services on one database would each
    keep their own idea of which tickets are open.
    """

    def __init__(self, database: Path) -> None:
        path = f"{database}.lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if sys.platform != "win32":
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 20, 0).decode("ascii", "replace").strip()
            os.close(self._file)
            who = f" (process {holder})" if holder else ""
            raise StoreError(
                f"another queenright{who} is using {database}; stop it, or give this one another database"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let go. The file stays: removing it could take a lock away from whoever has just opened it."""
        os.close(self._file)


class Database:
    """
    An open, migrated SQLite database: one connection to write with, a few to read with.

    Args:
        url: ``sqlite:///relative/path`` or ``sqlite:////absolute/path``.
        read_only: Neither lock nor create nor migrate; for looking into a running service's database.
        busy_timeout: How many seconds to wait for another program's lock.

    Raises:
        StoreError: The database cannot be used.
    """

    def __init__(self, url: str, *, read_only: bool, busy_timeout: float) -> None:
        address = _parse(url)
        self.path = Path(address.database or "").absolute()
        self._lock: FileLock | None = None
        self._engines: list[Engine] = []
        self._full: bool | None = None
        try:
            with self._explaining_file_errors(read_only):
                if read_only:
                    self.path.open("rb").close()
                else:
                    self._prepare_file()
            self._open(address.set(database=str(self.path)), read_only, busy_timeout)
        except BaseException:
            self.close()
            raise

    def _open(self, address: URL, read_only: bool, busy_timeout: float) -> None:
        try:
            self.reader = self._engine(address, busy_timeout, writes=False)
            if read_only:
                with self.reader.connect() as conn:
                    found = self._check(conn)
                if found != SCHEMA_REVISION:
                    raise StoreError(
                        f"{self.path} has schema {found}, and this version reads {SCHEMA_REVISION}; "
                        "look at it with the version that wrote it, or start the service to update it"
                    )
                return
            self.writer = self._engine(address, busy_timeout, writes=True).connect()
            self.durable(True)
            if self._check(self.writer) != SCHEMA_REVISION:
                self._migrate(self.writer)
            self.writer.rollback()
        except DBAPIError as error:
            raise StoreError(self._explain(error)) from error

    def durable(self, full: bool) -> None:
        """
        Choose what the next commits survive: with ``full`` a power cut, else only the process's death.

        Not inside a transaction: SQLite refuses it there.
        """
        if full != self._full:
            raw = self.writer.connection.driver_connection
            assert raw is not None
            raw.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
            self._full = full

    def close(self) -> None:
        """Close every connection, readers first, so that the last one folds the write-ahead log in."""
        if hasattr(self, "writer"):
            with contextlib.suppress(DBAPIError):
                self.writer.close()
        for engine in self._engines:
            engine.dispose()
        self._engines.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _prepare_file(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # What agents did is nobody else's business; SQLite gives its other files the same mode.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._lock = FileLock(self.path.resolve())

    @contextlib.contextmanager
    def _explaining_file_errors(self, read_only: bool) -> Any:
        try:
            yield
        except FileNotFoundError as error:
            if not read_only:
                raise StoreError(f"cannot create {self.path}: {error.strerror}; give another path") from error
            raise StoreError(
                f"there is no database at {self.path}; start the service first, or give its path"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot {'read' if read_only else 'write'} {self.path}: {error.strerror}; "
                "give a path to a file that this user may use"
            ) from error

    def _engine(self, address: URL, busy_timeout: float, *, writes: bool) -> Engine:
        engine = create_engine(
            address,
            # Used by one thread at a time, but not always the one that opened it.
            connect_args={"check_same_thread": False, "timeout": busy_timeout},
            pool_size=_READERS,
            max_overflow=0,
            # Values are agents' data: they do not belong in a message.
            hide_parameters=True,
        )
        event.listen(engine, "connect", _on_connect if writes else _on_connect_reader)
        # The driver would begin a transaction at the first write only: no snapshot, and a write that
        # may fail half-way because another program got in between.
        event.listen(engine, "begin", _begin_immediate if writes else _begin)
        self._engines.append(engine)
        return engine

    def _check(self, conn: Connection) -> str | None:
        """Return the schema's revision, None for an empty database; refuse what is not ours."""
        names = inspect(conn).get_table_names()
        if not names:
            return None
        found: str | None = None
        if _VERSION_TABLE in names:
            found = conn.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalar()
        elif "events" not in names or "event_log_head" not in names:
            raise StoreError(f"{self.path} is another program's database; give a path of its own")
        if found is None:
            raise StoreError(
                f"{self.path} has no schema version; restore it from a backup, or give another path"
            )
        return found

    def _migrate(self, conn: Connection) -> None:
        # Here, because it takes longer than everything else at start together.
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        conn.rollback()
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = conn
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise StoreError(
                f"{self.path} has a schema that this version does not know, so a newer version wrote it; "
                "upgrade queenright, or give another path"
            ) from error
        conn.commit()

    def _explain(self, error: DBAPIError) -> str:
        why = str(error.orig)
        if "locked" in why:
            way_out = "another program holds it; close that program"
        elif "not a database" in why or "malformed" in why:
            way_out = (
                "it is damaged or no SQLite database; restore it from a backup, or move it away to begin anew"
            )
        else:
            way_out = "check the disk and the file's permissions"
        return f"cannot use {self.path}: {why}; {way_out}"


def _parse(url: str) -> URL:
    try:
        address = make_url(url)
    except ArgumentError:
        # Without the address: it may hold a password.
        raise StoreError("the database's address is no URL; write sqlite:///path/to/queenright.db") from None
    if address.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise StoreError(
            f"no store for {address.drivername!r} addresses; write sqlite:///path/to/queenright.db"
        )
    if address.database in (None, "", ":memory:") or address.query:
        raise StoreError(
            f"{address.render_as_string(hide_password=True)} names no file, and a store outlives "
            "its process; write sqlite:///path/to/queenright.db"
        )
    return address


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
