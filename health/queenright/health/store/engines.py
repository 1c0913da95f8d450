"""Open the database at a URL."""

from __future__ import annotations

import contextlib
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from queenright.health.store.database import Database, StoreError
from queenright.instrumentation.extras import get_install_command

_URL_HINT: Final = (
    "write sqlite:///path/to/queenright.db or postgresql://user:password@host:5432/queenright "
    "(%40 for an @ in the password)"
)


def open_database(
    url: str, *, read_only: bool, busy_timeout: float, member_id: str | None = None, partition: int = 0
) -> Database:
    """
    Open the database at ``url``.

    Args:
        url: ``sqlite:///relative/path``, ``sqlite:////absolute/path`` or ``postgresql://host/name``.
        read_only: Do not lock, create or migrate the database, so that a running service's database can be
            read.
        busy_timeout: The seconds to wait for another program's lock.
        member_id: The member of a cluster that opens the database; PostgreSQL only.
        partition: The partition of a cluster; PostgreSQL only.

    Raises:
        StoreError: The database cannot be used, or the URL is invalid.
    """
    address = parse_address(url)
    if address.get_backend_name() == "sqlite":
        from queenright.health.store.sqlite import SqliteDatabase

        return SqliteDatabase(address, read_only=read_only, busy_timeout=busy_timeout)
    try:
        from queenright.health.store.postgres import PostgresDatabase
    except ImportError as error:
        raise StoreError(
            f"PostgreSQL's driver cannot be imported ({error}). Run: {get_install_command('server,postgres')}"
        ) from error
    return PostgresDatabase(
        address, read_only=read_only, busy_timeout=busy_timeout, member_id=member_id, partition=partition
    )


def list_partitions(url: str) -> list[int]:
    """
    Return the numbers of the partitions in a database, from 0. SQLite has only partition 0.

    Raises:
        StoreError: The database cannot be used, or the URL is invalid.
    """
    with contextlib.closing(open_database(url, read_only=True, busy_timeout=0)) as database:
        return database.list_partitions()


def parse_address(url: str) -> URL:
    """
    Return the parsed URL, with the driver to use.

    Raises:
        StoreError: The URL is invalid or has no supported scheme. The message shows a valid URL.
    """
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        # The message omits the URL, because it or an invalid port may contain a password.
        raise StoreError(f"the database's address is not a URL; {_URL_HINT}") from None
    if "@" in (address.host or ""):
        raise StoreError(f"the database's address has more than one @; {_URL_HINT}")
    if address.drivername in ("sqlite", "sqlite+pysqlite"):
        return address
    if address.port is not None and not 1 <= address.port <= 65_535:
        raise StoreError(f"the port in the database's address is not between 1 and 65535; {_URL_HINT}")
    if not (address.host or address.database or address.query):
        raise StoreError(f"the database's address names neither a host nor a database; {_URL_HINT}")
    if address.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return address.set(drivername="postgresql+psycopg")
    raise StoreError(f"no store for {address.drivername!r} addresses; {_URL_HINT}")
