"""Rows that store an object as JSON in ``body``; their other columns are for searching."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Connection, Table, select


def put_row(conn: Connection, table: Table, key: Column[Any], value: str, columns: dict[str, Any]) -> None:
    """Insert the row whose ``key`` is ``value``, or replace its ``columns``."""
    if not conn.execute(table.update().where(key == value).values(**columns)).rowcount:
        conn.execute(table.insert().values(**{key.name: value}, **columns))


def find_body(conn: Connection, table: Table, key: Column[Any], value: str) -> str | None:
    """Return the ``body`` of the row whose ``key`` is ``value``, or None."""
    body: str | None = conn.execute(select(table.c.body).where(key == value)).scalar()
    return body
