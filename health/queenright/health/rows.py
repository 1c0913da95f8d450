"""Rows that store an object as JSON in ``body``, and keyset pagination over them, newest first."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, literal, select, tuple_

Place = tuple[float, str]
"""The position of the last row of a page: when it was created, in seconds since the epoch, and its id."""


def newest_first(
    query: Select[Any],
    created_at: ColumnElement[float],
    id_: ColumnElement[str],
    *,
    limit: int,
    before: Place | None = None,
) -> Select[Any]:
    """Return a query for the newest ``limit`` rows after the position ``before``."""
    if before is not None:
        query = query.where(tuple_(created_at, id_) < tuple_(literal(before[0]), literal(before[1])))
    return query.order_by(created_at.desc(), id_.desc()).limit(limit)


def put_row(conn: Connection, table: Table, key: Column[Any], value: str, columns: dict[str, Any]) -> None:
    """Insert the row whose ``key`` is ``value``, or replace its ``columns``."""
    if not conn.execute(table.update().where(key == value).values(**columns)).rowcount:
        conn.execute(table.insert().values(**{key.name: value}, **columns))


def find_body(conn: Connection, table: Table, key: Column[Any], value: str) -> str | None:
    """Return the ``body`` of the row whose ``key`` is ``value``, or None."""
    body: str | None = conn.execute(select(table.c.body).where(key == value)).scalar()
    return body
