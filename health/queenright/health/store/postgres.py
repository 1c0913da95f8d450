"""
The store on a PostgreSQL server. It ensures a single writer, and handles durability and broken connections.

The session that writes holds an advisory lock, which keeps a second service from writing. It is lost with the
session. ``store_writer`` names the last writer, so that a service whose connection broke detects that another
service has written in the meantime.

A partition of a cluster is a schema with the same tables and its own lock. Partition 0 is the default schema.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    Table,
    create_engine,
    event,
    false,
    func,
    select,
)
from sqlalchemy.exc import DBAPIError, OperationalError

from queenright.health.store.database import (
    Database,
    DatabaseInUseError,
    DatabaseUnavailableError,
    StoreError,
    engine_options,
)
from queenright.instrumentation.identity import new_id

WRITER_LOCK: Final = 0x717565656E  # "queen"
DATABASE_TIME: Final = "extract(epoch from clock_timestamp())"
"""Seconds since the epoch on the server's clock, which all members of a cluster share."""
_SCHEMA_PREFIX: Final = "queenright_"
"""The prefix of a partition's schema, before its number."""
_MIN_RELEASE: Final = 14
"""The oldest supported release. Earlier ones are not maintained, and have no ``idle_session_timeout``."""

_CONNECT_SECONDS: Final = 10
_open_databases: Final[WeakSet[PostgresDatabase]] = WeakSet()
_NETWORK_OPTIONS: Final = {
    # With these values, both ends detect a lost peer within a minute.
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 50_000,
}
_WRITER_STATEMENTS: Final = (
    "SET tcp_keepalives_idle = 20",
    "SET tcp_keepalives_interval = 10",
    "SET tcp_keepalives_count = 3",
    # The lock is lost with the session, so the server must not end an idle session.
    "SET idle_session_timeout = 0",
)

_REMEDIES: Final = (
    (
        ("password", "authentication", "role"),
        "check the user and the password in the address (%40 for an @, %2F for a /)",
    ),
    (("pg_hba.conf",), "let this host and user in, in the server's pg_hba.conf"),
    (("connection slots", "too many"), "raise the server's max_connections; a service needs 5"),
    (("starting up", "shutting down", "recovery mode"), "wait until the server is up"),
    (
        ("permission denied", "must be owner"),
        "make its user the database's owner: ALTER DATABASE ... OWNER TO",
    ),
    (("No space left",), "free space on the server's volume; what is stored is kept"),
    (("read-only",), "it is a standby; give the primary's address"),
    (("lock timeout",), "another program holds a table; close that program"),
    (
        ("refused", "timeout", "resolve", "translate", "No such file", "unreachable", "closed"),
        "start the server, or check host and port",
    ),
)


class PostgresDatabase(Database):
    """
    A database on a PostgreSQL server.

    Args:
        address: A URL with the driver ``psycopg``. libpq adds missing values, such as those in ``PGPASSWORD``
            and ``.pgpass``.
        read_only: Do not lock or migrate the database, so that a running service's database can be read.
        busy_timeout: The seconds to wait for the lock of another program or service.
        member_id: The member of a cluster that writes and renews its lease (``cluster_lease``).
        partition: The partition of a cluster.

    Raises:
        StoreError: The database cannot be used.
    """

    another = "another database"

    def __init__(
        self,
        address: URL,
        *,
        read_only: bool,
        busy_timeout: float,
        member_id: str | None = None,
        partition: int = 0,
    ) -> None:
        super().__init__()
        self._connections: WeakSet[psycopg.Connection[Any]] = WeakSet()
        self._is_disconnected = False
        _open_databases.add(self)
        self.name = _mask_address(address)
        self.schema = partition_schema(partition)
        if self.schema is not None:
            self.name += f" (schema {self.schema})"
        self._lock_key = partition_lock(partition)
        self._busy_timeout = busy_timeout
        self._commit_level = "on"
        self._member_id = member_id
        self.writer_token = new_id()
        self._has_claim = False
        try:
            self.reader = self._create_engine(address, pool_pre_ping=True)
            event.listen(self.reader, "connect", self._on_connect_reader)
            if read_only:
                self.check_readable()
                return
            self._writers = self._create_engine(address)
            event.listen(self._writers, "connect", self._on_connect_writer)
            self.writer = self._writers.connect()
            self.bring_up_to_date(self.writer)
            self._write_claim()
        except DBAPIError as error:
            self.close()
            raise self.explain(error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every connection."""
        if hasattr(self, "writer") and self._is_broken():
            # Otherwise a rollback would fail and be logged.
            self._discard_writer()
        super().close()

    def disconnect(self) -> None:
        """
        End all connections immediately, even while threads wait for the server. No new connections are
        opened.
        """
        self._is_disconnected = True
        for raw in list(self._connections):
            # Closing the connection from another thread would not wake the waiting thread.
            with (
                contextlib.suppress(OSError, psycopg.Error),
                socket.socket(fileno=os.dup(raw.fileno())) as sock,
            ):
                sock.shutdown(socket.SHUT_RDWR)

    def set_durability(self, *, full: bool) -> None:
        """
        Implement ``Database``. Each call runs a statement, which detects a broken connection before the
        transaction.
        """
        statement = f"SET synchronous_commit TO {self._commit_level if full else 'off'}"
        try:
            try:
                self._execute_autocommit(statement)
            except psycopg.Error:
                if not self._is_broken():
                    raise
                self._reconnect()
                self._execute_autocommit(statement)
        except psycopg.Error as error:
            raise DatabaseUnavailableError(f"cannot write to {self.name}: {_get_message(error)}") from error
        except DBAPIError as error:
            why = self.cause(error)
            raise DatabaseUnavailableError(
                f"cannot write to {self.name}: {why}; {self.remedy(why)}"
            ) from error

    def has_written(self) -> bool:
        """Implement ``Database``. Only a transaction that writes has an id."""
        result = self.writer.exec_driver_sql("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
        return bool(result.scalar_one())

    def cause(self, error: DBAPIError) -> str:
        """Implement ``Database``. Error details are left out, because they quote the row."""
        return _get_message(error.orig)

    def remedy(self, why: str) -> str:
        """Implement ``Database``."""
        if "database" in why and "does not exist" in why:
            return "create it: createdb, or CREATE DATABASE ... ENCODING 'UTF8'"
        for words, remedy in _REMEDIES:
            if any(word in why for word in words):
                return remedy
        return "look into the server's log"

    def identity(self) -> str:
        """Implement ``Database``. The identity is the last writer's token."""
        with self.reader.connect() as conn:
            return str(conn.exec_driver_sql("SELECT token FROM store_writer").scalar())

    def advance_sequence(self, conn: Connection, table: Table) -> None:
        """Implement ``Database``. Rows that are inserted with a number do not advance the sequence."""
        column = table.autoincrement_column
        if column is not None:
            highest = select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            conn.execute(select(func.setval(sequence, highest, false())))

    def list_partitions(self) -> list[int]:
        """Implement ``Database``."""
        with self.reader.connect() as conn:
            return sorted(conn.exec_driver_sql(list_schemas_query("event_log_head")).scalars())

    def is_unavailable(self, error: DBAPIError) -> bool:
        """Implement ``Database``. This is so if the server is gone, its disk is full, or a lock times out."""
        # SQLSTATE class 54 is a value that is too large for an index, which the caller caused.
        is_value_too_large = str(getattr(error.orig, "sqlstate", None)).startswith("54")
        return error.connection_invalidated or (
            isinstance(error, OperationalError) and not is_value_too_large
        )

    # -- the writing session --------------------------------------------------------------------------

    def _execute_autocommit(self, statement: str) -> None:
        if self.writer.closed or self.writer.invalidated:
            raise psycopg.OperationalError("the connection is closed")
        raw = self.writer.connection.driver_connection
        assert isinstance(raw, psycopg.Connection)
        raw.autocommit = True
        raw.execute(statement)
        raw.autocommit = False

    def _is_broken(self) -> bool:
        """
        Return whether the write connection is closed, or was interrupted while it waited for the server.
        """
        if self.writer.closed or self.writer.invalidated:
            return True
        raw = self.writer.connection.driver_connection
        if not isinstance(raw, psycopg.Connection):
            return True
        return raw.closed or raw.info.transaction_status is TransactionStatus.ACTIVE

    def _discard_writer(self) -> None:
        if not self.writer.closed:
            with contextlib.suppress(DBAPIError):
                self.writer.invalidate()
            self.writer.close()

    def _reconnect(self) -> None:
        self._discard_writer()
        self.writer = self._writers.connect()

    def _connect(
        self, _dialect: object, _record: object, arguments: Sequence[Any], options: dict[str, Any]
    ) -> psycopg.Connection[Any]:
        raw: psycopg.Connection[Any] | None = None
        if not self._is_disconnected:
            raw = psycopg.connect(*arguments, **options)
            # Add it before SQLAlchemy sends a query, because the server may not answer.
            self._connections.add(raw)
        # ``disconnect`` may have been called while the connection was being made.
        if raw is None or self._is_disconnected:
            if raw is not None:
                raw.close()
            raise psycopg.OperationalError("the connection is closed")
        return raw

    def _on_connect_writer(self, raw: psycopg.Connection[Any], _record: object) -> None:
        """Prepare a new connection for writing, or close it."""
        try:
            raw.autocommit = True
            self._check_server(raw)
            for statement in _WRITER_STATEMENTS:
                raw.execute(statement)
            raw.execute(f"SET lock_timeout = {round(1000 * self._busy_timeout)}")
            self._enter_schema(raw)
            self._lock(raw)
            if self.schema is not None:
                raw.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")
            raw.autocommit = False
        except BaseException:
            raw.close()
            raise

    def _on_connect_reader(self, raw: psycopg.Connection[Any], _record: object) -> None:
        raw.autocommit = True
        self._enter_schema(raw)
        raw.autocommit = False
        raw.read_only = True
        raw.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    def _enter_schema(self, raw: psycopg.Connection[Any]) -> None:
        """Make table names refer to the partition's tables."""
        if self.schema is not None:
            # This is not a connection option, because connection poolers refuse those.
            raw.execute(f"SET search_path TO {self.schema}")

    def _check_server(self, raw: psycopg.Connection[Any]) -> None:
        encoding, commit_level, is_standby = _fetch_one(
            raw,
            "SELECT current_setting('server_encoding'), current_setting('synchronous_commit'),"
            " pg_is_in_recovery()",
        )
        release = raw.info.server_version // 10_000
        if release < _MIN_RELEASE:
            raise StoreError(f"{self.name} is on PostgreSQL {release}; {_MIN_RELEASE} or later is needed")
        if is_standby:
            raise StoreError(f"{self.name} is a standby and cannot be written to; give the primary's address")
        if encoding != "UTF8":
            raise StoreError(
                f"{self.name} is encoded in {encoding}; create it with ENCODING 'UTF8' TEMPLATE template0"
            )
        # Keep the level that the administrator set, for example for a standby, if commits then survive a
        # power cut.
        self._commit_level = "on" if commit_level == "off" else commit_level

    def _lock(self, raw: psycopg.Connection[Any]) -> None:
        try:
            # Wait, because the server may take some time to notice that a process was killed.
            raw.execute(f"SELECT pg_advisory_lock({self._lock_key})")
        except psycopg.errors.LockNotAvailable:
            _, who, is_member = _read_last_writer(raw)
            remedy = "; stop it, or give this one another database"
            if self._member_id:
                # There is nothing to fix in a cluster, where it is normal that another member is the owner.
                remedy = ""
            elif is_member:
                remedy = (
                    " in a cluster; join it with `queenright serve --cluster NATS`, "
                    "or give this one another database"
                )
            raise DatabaseInUseError(f"another queenright{who} is using {self.name}{remedy}") from None
        if self._has_claim:
            token, who, _ = _read_last_writer(raw)
            if token != self.writer_token:
                remedy = "" if self._member_id else "; restart this one"
                raise StoreError(
                    f"another queenright{who} has written to {self.name} while the connection was broken"
                    f"{remedy}"
                )
            if self._member_id is not None:
                # Other members take a session that is younger than the lease for one that is about to take
                # over.
                raw.execute(f"UPDATE store_writer SET renewed_at = {DATABASE_TIME}")

    def _write_claim(self) -> None:
        process = f"process {os.getpid()} on {socket.gethostname()}"
        with self.writer.begin():
            self.former_lease_at = self.writer.exec_driver_sql(
                "SELECT max(renewed_at) FROM store_writer"
            ).scalar()
            self.writer.exec_driver_sql("DELETE FROM store_writer")
            self.writer.exec_driver_sql(
                "INSERT INTO store_writer (token, who, member_id, renewed_at) VALUES (%(token)s, %(who)s, "
                f"%(member_id)s, CASE WHEN %(member_id)s::text IS NOT NULL THEN {DATABASE_TIME} END)",
                {"token": self.writer_token, "who": process, "member_id": self._member_id},
            )
        self._has_claim = True

    def _create_engine(self, address: URL, **options: Any) -> Engine:
        network = {"connect_timeout": _CONNECT_SECONDS, "application_name": "queenright", **_NETWORK_OPTIONS}
        engine = create_engine(
            address,
            connect_args={
                "client_encoding": "utf8",
                **{name: value for name, value in network.items() if name not in address.query},
            },
            use_native_hstore=False,
            **engine_options(),
            **options,
        )
        event.listen(engine, "handle_error", _strip_details)
        event.listen(engine, "do_connect", self._connect)
        return self._register(engine)


def disconnect_databases() -> None:
    """End the store connections of this process, so that it can exit while a server does not answer."""
    for database in list(_open_databases):
        database.disconnect()


def partition_schema(partition: int) -> str | None:
    """Return the schema of a partition, or None for the default schema."""
    return f"{_SCHEMA_PREFIX}{partition}" if partition else None


def writer_table(partition: int) -> str:
    """Return the qualified name of the ``store_writer`` table of a partition."""
    schema = partition_schema(partition)
    return "store_writer" if schema is None else f"{schema}.store_writer"


def partition_lock(partition: int) -> int:
    """Return the key of the advisory lock that the writer of a partition holds."""
    return WRITER_LOCK + (partition << 40)


def list_schemas_query(table: str) -> str:
    """Return a query for the numbers (``partition``) of the partitions that have the table ``table``."""
    return (
        f"SELECT CASE WHEN schemaname ~ '^{_SCHEMA_PREFIX}[1-9][0-9]{{0,3}}$'"
        f" THEN substr(schemaname, {len(_SCHEMA_PREFIX) + 1})::int ELSE 0 END AS partition"
        f" FROM pg_tables WHERE tablename = '{table}'"
        f" AND (schemaname = current_schema() OR schemaname ~ '^{_SCHEMA_PREFIX}[1-9][0-9]{{0,3}}$')"
    )


def _mask_address(address: URL) -> str:
    """Return the URL for messages, without password and query."""
    host = address.host or address.query.get("host", "")
    port = address.port or address.query.get("port", "")
    location = f"{host if isinstance(host, str) else ','.join(host)}{f':{port}' if port else ''}"
    user = f"{address.username}@" if address.username else ""
    return f"postgresql://{user}{location}/{address.database or ''}"


def _read_last_writer(raw: psycopg.Connection[Any]) -> tuple[str, str, bool]:
    """
    Return the last writer's token, its process in brackets, and whether it is a member of a cluster.
    """
    # The table does not exist while the first service is creating it.
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        # ``member_id`` is read as JSON, because tables of an older version do not have the column.
        row = raw.execute(
            "SELECT token, who, to_jsonb(store_writer) ->> 'member_id' IS NOT NULL FROM store_writer"
        ).fetchone()
        if row is not None:
            return row[0], f" ({row[1]})", row[2]
    return "", "", False


def _fetch_one(raw: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    row = raw.execute(query).fetchone()
    assert row is not None
    return tuple(row)


def _get_message(error: BaseException | None) -> str:
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    lines = (primary or str(error)).strip().splitlines()
    return " ".join(lines[0].split()) if lines else type(error).__name__


def _strip_details(context: ExceptionContext) -> None:
    """Reduce an error to its message, because the details quote the row."""
    original = context.original_exception
    if isinstance(original, psycopg.Error) and original.diag.message_primary:
        original.args = (original.diag.message_primary,)
        if context.sqlalchemy_exception is not None:
            context.sqlalchemy_exception.args = (
                f"({type(original).__name__}) {original.diag.message_primary}",
            )
