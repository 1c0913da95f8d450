"""Copy the database of a stopped service to another address, for example from SQLite to PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, Table, delete, func, insert, select
from sqlalchemy.exc import DBAPIError

from queenright.health.store.database import Database, NoDatabaseError, StoreError
from queenright.health.store.engines import open_database
from queenright.health.store.event_chain import Verification, verify, verify_archive
from queenright.health.store.tables import EVENT_LOG_HEAD, METADATA

_PAGE: Final = 1000
_BUSY_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCopy:
    """A completed copy."""

    source: str
    """The name of the database that was copied: a path, or an address without its password."""
    target: str
    rows: dict[str, int]
    """The number of rows by table."""
    log: Verification
    """The event log of the copy."""
    archive: Verification
    """The audit archive of the copy."""


def copy_database(source_url: str, target_url: str, *, on_row: Callable[[], None]) -> StoreCopy:
    """
    Copy every table in one transaction, and verify the hash chains before it is committed.

    Both databases are locked, so that no service can start on either. If the copy fails or is killed, the
    target stays empty and the copy can be repeated.

    Args:
        source_url: The database to copy. It must have the schema of this version.
        target_url: An empty database, or the path of a new file.
        on_row: Called after each row.

    Raises:
        StoreError: One of the databases cannot be used, the target is not empty, or the source fails
            verification or has several partitions.
    """
    with contextlib.ExitStack() as stack:
        # Check before opening it for writing, which would create or migrate it.
        _check_source(source_url)
        source = stack.enter_context(_open(source_url, read_only=False))
        _check_target(source, target_url)
        target = stack.enter_context(_open(target_url, read_only=False))
        target.set_durability(full=True)
        try:
            with target.writer.begin():
                return _copy(source, target, on_row)
        except DBAPIError as error:
            raise target.explain(error) from error


def _check_source(url: str) -> None:
    """Raise ``StoreError`` if a database cannot be read, or has several partitions."""
    with _open(url, read_only=True) as source:
        if len(partitions := source.list_partitions()) > 1:
            raise StoreError(
                f"{source.name} has {len(partitions)} partitions, and only one can be copied; use pg_dump"
            )


def _check_target(source: Database, url: str) -> None:
    """Raise ``StoreError`` if the target is the source itself, or a database that would be migrated."""
    try:
        # Opened read-only, a database with another schema is refused instead of migrated.
        with _open(url, read_only=True) as target:
            if target.identity() == source.identity():
                raise StoreError(f"{target.name} is the database to copy; give another one to copy to")
    except NoDatabaseError:
        return


def _copy(source: Database, target: Database, on_row: Callable[[], None]) -> StoreCopy:
    _check_empty(target)
    rows = {}
    target.writer.execute(delete(EVENT_LOG_HEAD))
    with source.reader.connect() as conn:
        for table in METADATA.sorted_tables:
            rows[table.name] = 0
            for page in _read_pages(source, conn, table):
                target.writer.execute(insert(table), [row._asdict() for row in page])
                rows[table.name] += len(page)
                for _ in page:
                    on_row()
            target.advance_sequence(target.writer, table)
    log, archive = verify(target.writer), verify_archive(target.writer)
    for name, check in (("event log", log), ("audit archive", archive)):
        if not check.ok:
            raise StoreError(
                f"the {name} in {source.name} was changed: {check.reason}; "
                "look at it with `queenright audit verify`, and restore a backup"
            )
    return StoreCopy(source=source.name, target=target.name, rows=rows, log=log, archive=archive)


def count_rows(url: str) -> int:
    """
    Return the number of rows that a copy has to write.

    Raises:
        StoreError: The database cannot be read.
    """
    with _open(url, read_only=True) as database:
        try:
            with database.reader.connect() as conn:
                return sum(_count_rows(conn, table) for table in METADATA.sorted_tables)
        except DBAPIError as error:
            raise database.explain(error) from error


def _check_empty(target: Database) -> None:
    for table in METADATA.sorted_tables:
        # A new database has the head of an empty log.
        if table is not EVENT_LOG_HEAD and _count_rows(target.writer, table):
            raise StoreError(f"{target.name} is not empty ({table.name} has rows); give an empty database")


def _count_rows(conn: Connection, table: Table) -> int:
    return conn.execute(select(func.count()).select_from(table)).scalar_one()


def _read_pages(source: Database, conn: Connection, table: Table) -> Iterator[Sequence[Row[Any]]]:
    query = select(table).order_by(*table.primary_key).execution_options(yield_per=_PAGE)
    try:
        yield from conn.execute(query).partitions()
    except DBAPIError as error:
        raise source.explain(error) from error


def _open(url: str, *, read_only: bool) -> contextlib.closing[Database]:
    return contextlib.closing(open_database(url, read_only=read_only, busy_timeout=_BUSY_SECONDS))
