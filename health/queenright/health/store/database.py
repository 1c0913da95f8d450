"""
The interface between the store and a database engine: connections, schema and error messages.

``sqlite`` and ``postgres`` implement it. Only these modules and ``schema`` contain SQL for a particular
engine.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from sqlalchemy import Connection, Engine, Table, inspect, select
from sqlalchemy.exc import DBAPIError

from queenright.health.store.schema import COMPATIBILITY, VERSION, create_schema
from queenright.health.store.tables import SCHEMA_REVISION
from queenright.instrumentation.errors import QueenrightError

_log = logging.getLogger(__name__)

READERS: Final = 4
"""The maximum number of read connections."""

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_migration_lock: Final = threading.Lock()
"""Serializes migrations: Alembic has one context per process, but partitions are opened concurrently."""


class StoreError(QueenrightError):
    """
    Raised when the database cannot be opened, read or written. The message states the problem, the database,
    and the fix.
    """


class DatabaseUnavailableError(StoreError):
    """Raised when the database or its connection is at fault, rather than the data."""


class DatabaseInUseError(StoreError):
    """Raised when another service writes to the database."""


class NoDatabaseError(StoreError):
    """Raised when a database that is opened for reading has no tables, or its file does not exist."""


class _Schema(NamedTuple):
    """The schema of a database."""

    revision: str
    oldest_compatible: str | None
    """The oldest revision whose code can use the schema; None if only code of ``revision`` can."""

    @property
    def is_usable(self) -> bool:
        """
        Whether this version can use the schema, because it is the same, or newer and declared compatible.
        """
        if self.revision == SCHEMA_REVISION:
            return True
        is_newer = self.revision.isdigit() and self.revision > SCHEMA_REVISION
        return is_newer and (self.oldest_compatible or self.revision) <= SCHEMA_REVISION


class Database(ABC):
    """
    An open, migrated database with one write connection and a few read connections.

    Attributes:
        name: The database's name in messages: a path, or an address without its password.
        reader: Provides read-only connections with a snapshot.
        writer: The write connection. It is not set if the database was opened read-only.
        writer_token: Identifies this writer, if several processes may write in turn.
        former_lease_at: When the former owner of the partition last renewed its lease; None if there was
            none.
        schema: The schema that has the tables; None for the default schema.
    """

    another: ClassVar[str]
    """What to use instead if this database cannot be used, for error messages."""

    name: str
    reader: Engine
    writer: Connection
    writer_token: str = ""
    former_lease_at: float | None = None
    schema: str | None = None

    def __init__(self) -> None:
        self._engines: list[Engine] = []

    @abstractmethod
    def set_durability(self, *, full: bool) -> None:
        """
        Set the durability of commits. With ``full``, they survive a power cut, otherwise only a crash.

        It is called before each transaction, never inside one. It reopens a broken connection.

        Raises:
            StoreError: The connection is broken and cannot be reopened.
        """

    @abstractmethod
    def has_written(self) -> bool:
        """Return whether the open transaction has written anything."""

    def has_room(self) -> bool:
        """Return whether a batch of events fits on the disk. True if the engine cannot check its disk."""
        return True

    @abstractmethod
    def cause(self, error: DBAPIError) -> str:
        """Return the engine's error message, without values and passwords."""

    @abstractmethod
    def remedy(self, why: str) -> str:
        """Return what an operator can do about an error."""

    @abstractmethod
    def identity(self) -> str:
        """Return a value that differs for every database of the engine."""

    def list_partitions(self) -> list[int]:
        """Return the numbers, from 0, of the partitions of a cluster that have tables in this database."""
        return [0]

    @abstractmethod
    def advance_sequence(self, conn: Connection, table: Table) -> None:
        """Make the engine's next row number follow the highest number in the table."""

    def is_unavailable(self, error: DBAPIError) -> bool:
        """Return whether the database or the connection caused an error, rather than the written data."""
        return error.connection_invalidated

    def close(self) -> None:
        """Close every connection."""
        if hasattr(self, "writer"):
            with contextlib.suppress(DBAPIError):
                self.writer.close()
        for engine in self._engines:
            engine.dispose()
        self._engines.clear()

    def explain(self, error: DBAPIError) -> StoreError:
        """Return the error to raise when the database cannot be opened."""
        why = self.cause(error)
        kind = DatabaseUnavailableError if self.is_unavailable(error) else StoreError
        return kind(f"cannot use {self.name}: {why}; {self.remedy(why)}")

    def check_readable(self) -> None:
        """
        Check that the database exists and that this version can use it.

        Raises:
            NoDatabaseError: The database is empty.
            StoreError: The database belongs to another program, or has another schema.
        """
        with self.reader.connect() as conn:
            schema = self._read_schema(conn)
        if schema is None:
            raise NoDatabaseError(f"{self.name} is empty; start the service first, or give {self.another}")
        if not schema.is_usable:
            raise StoreError(
                f"{self.name} has schema {schema.revision}, and this version reads {SCHEMA_REVISION}; "
                "look at it with the version that wrote it, or start the service to update it"
            )

    def bring_up_to_date(self, conn: Connection) -> None:
        """
        Create or migrate the schema. A newer schema that this version can use is not changed.

        Raises:
            StoreError: The database belongs to another program, or has an unknown schema.
        """
        schema = self._read_schema(conn)
        conn.rollback()
        if schema is None:
            self._create(conn)
        elif not schema.is_usable:
            self._migrate(conn, schema.revision)

    def _read_schema(self, conn: Connection) -> _Schema | None:
        """
        Return the schema, or None for an empty database. Raise ``StoreError`` if it belongs to another
        program.
        """
        names = inspect(conn).get_table_names(schema=self.schema)
        if not names:
            return None
        revision: str | None = None
        oldest_compatible: str | None = None
        if VERSION.name in names:
            revision = conn.execute(select(VERSION.c.version_num)).scalar()
        elif "events" not in names or "event_log_head" not in names:
            raise StoreError(f"{self.name} is another program's database; give {self.another}")
        if revision is None:
            raise StoreError(
                f"{self.name} has no schema version; restore it from a backup, or give {self.another}"
            )
        if COMPATIBILITY.name in names:
            oldest_compatible = conn.execute(select(COMPATIBILITY.c.oldest_compatible)).scalar()
        return _Schema(revision, oldest_compatible)

    def _create(self, conn: Connection) -> None:
        create_schema(conn)
        conn.commit()
        _log.info("database created with schema revision %s: %s", SCHEMA_REVISION, self.name)

    def _migrate(self, conn: Connection, revision: str) -> None:
        # Imported here, because this import takes longer than the rest of the start.
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = conn
        try:
            with _migration_lock:
                command.upgrade(config, "head")
        except CommandError as error:
            raise StoreError(
                f"{self.name} has a schema that this version does not know ({revision}; this version has "
                f"{SCHEMA_REVISION}); use the version of queenright that wrote it, or give {self.another}"
            ) from error
        conn.commit()
        _log.info("database migrated to revision %s: %s", SCHEMA_REVISION, self.name)

    def _register(self, engine: Engine) -> Engine:
        self._engines.append(engine)
        return engine


def engine_options() -> dict[str, Any]:
    """Return the SQLAlchemy options that all engines share."""
    # Parameters are data of agents, which must not appear in error messages.
    return {"pool_size": READERS, "max_overflow": 0, "hide_parameters": True}
