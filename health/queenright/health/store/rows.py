"""Query helpers: batches of values, pages of rows, and tables that store a model as JSON in ``body``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel
from sqlalchemy import ColumnElement, Connection, Select, Table, bindparam, func, literal, select, tuple_

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_QUERY_BATCH: Final = 500
"""The maximum number of values per query, which SQLite limits."""

Place = tuple[float, str]
"""
The cursor of a page: when the last row of the previous page was created (seconds since the epoch), and its
id.
"""


def batches(values: Collection[T]) -> Iterator[list[T]]:
    """Yield the values in lists that are short enough for one query."""
    all_values = list(values)
    for start in range(0, len(all_values), _QUERY_BATCH):
        yield all_values[start : start + _QUERY_BATCH]


def newest_first(
    query: Select[Any],
    created_at: ColumnElement[float],
    id_: ColumnElement[str],
    *,
    limit: int,
    before: Place | None = None,
) -> Select[Any]:
    """Return a query for the newest ``limit`` rows, or for those that follow the cursor ``before``."""
    if before is not None:
        query = query.where(tuple_(created_at, id_) < tuple_(literal(before[0]), literal(before[1])))
    return query.order_by(created_at.desc(), id_.desc()).limit(limit)


class ModelTable(Generic[M]):
    """
    A table that stores a model as JSON in ``body``. Its other columns are attributes of the model, for
    searches.

    Args:
        table: The table. Its key must be a single column. ``newest`` also needs ``created_at``.
        model: The class of the model.
        attributes: The names of attributes that differ from their column, by column.
    """

    def __init__(self, table: Table, model: type[M], **attributes: str) -> None:
        [self._id] = table.primary_key.columns
        self._table = table
        self._model = model
        self._attributes = {c.name: attributes.get(c.name, c.name) for c in table.c if c.name != "body"}
        # Statements are built once, because that takes several times longer than running them in SQLite.
        self._insert = table.insert()
        self._update = table.update().where(self._id == bindparam("row_id"))
        self._find = select(table.c.body).where(self._id == bindparam("row_id"))

    def insert(self, conn: Connection, row: M) -> None:
        """Insert a new row."""
        conn.execute(self._insert, self._make_values(row))

    def write(self, conn: Connection, row: M) -> None:
        """Update a row, or insert it if it is new."""
        values = self._make_values(row)
        if not conn.execute(self._update, {"row_id": values[self._id.name], **values}).rowcount:
            conn.execute(self._insert, values)

    def _make_values(self, row: M) -> dict[str, object]:
        values = {column: _to_column_value(getattr(row, name)) for column, name in self._attributes.items()}
        return values | {"body": row.model_dump_json()}

    def find(self, conn: Connection, id_: str) -> M | None:
        """Return the row with this id, or None."""
        return next(iter(self.read(conn, self._find, {"row_id": id_})), None)

    def find_by_prefix(self, conn: Connection, prefix: str, limit: int) -> list[M]:
        """Return up to ``limit`` rows whose id begins with ``prefix``, sorted by id."""
        # LIKE would ignore case in SQLite, and treat some characters as wildcards.
        has_prefix = func.substr(self._id, 1, len(prefix)) == prefix
        return self.read(conn, select(self._table.c.body).where(has_prefix).order_by(self._id).limit(limit))

    def newest(
        self, conn: Connection, limit: int, *, before: Place | None = None, **equal: object
    ) -> list[M]:
        """
        Return rows, newest first.

        Args:
            conn: A connection in a transaction.
            limit: The maximum number of rows.
            before: The cursor of the page; None for the first page.
            equal: The values that columns must have; None allows any value.
        """
        columns = self._table.c
        query = select(columns.body).where(
            *(columns[name] == _to_column_value(value) for name, value in equal.items() if value is not None)
        )
        query = newest_first(query, columns.created_at, self._id, limit=limit, before=before)
        return self.read(conn, query)

    def read(self, conn: Connection, query: Select[Any], values: Mapping[str, Any] | None = None) -> list[M]:
        """Return the models of a query that selects ``body``."""
        return [self._model.model_validate_json(body) for body in conn.execute(query, values).scalars()]


def _to_column_value(value: object) -> object:
    return value.value if isinstance(value, Enum) else value
