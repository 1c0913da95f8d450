"""Query helpers: values in batches, pages newest first, and tables that hold a model as JSON in ``body``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel
from sqlalchemy import ColumnElement, Connection, Select, Table, bindparam, func, literal, select, tuple_

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_QUERY_BATCH: Final = 500
"""Maximum values per query, because SQLite limits them."""

Place = tuple[float, str]
"""The position of the last row of a page: when it was created, in seconds since the epoch, and its id."""


def batches(values: Collection[T]) -> Iterator[list[T]]:
    """Yield the values in lists that are short enough for one query."""
    every = list(values)
    for start in range(0, len(every), _QUERY_BATCH):
        yield every[start : start + _QUERY_BATCH]


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


class ModelTable(Generic[M]):
    """
    A table with each model as JSON in ``body``. Its other columns are attributes for searches.

    Args:
        table: The table. Its key is one column; ``newest`` also needs ``created_at``.
        model: The model.
        attributes: The attributes that have other names than their columns, by column.
    """

    def __init__(self, table: Table, model: type[M], **attributes: str) -> None:
        [self._id] = table.primary_key.columns
        self._table = table
        self._model = model
        self._attributes = {c.name: attributes.get(c.name, c.name) for c in table.c if c.name != "body"}
        # Built once, because building a statement is several times slower than running it in SQLite.
        self._insert = table.insert()
        self._update = table.update().where(self._id == bindparam("row_id"))
        self._find = select(table.c.body).where(self._id == bindparam("row_id"))

    def insert(self, conn: Connection, row: M) -> None:
        """Insert a new row."""
        conn.execute(self._insert, self._values(row))

    def write(self, conn: Connection, row: M) -> None:
        """Update a row, or insert it if it is new."""
        values = self._values(row)
        if not conn.execute(self._update, {"row_id": values[self._id.name], **values}).rowcount:
            conn.execute(self._insert, values)

    def _values(self, row: M) -> dict[str, object]:
        values = {column: _plain(getattr(row, name)) for column, name in self._attributes.items()}
        return values | {"body": row.model_dump_json()}

    def find(self, conn: Connection, id_: str) -> M | None:
        """Return the row with this id, or None."""
        return next(iter(self.read(conn, self._find, {"row_id": id_})), None)

    def find_by_prefix(self, conn: Connection, prefix: str, limit: int) -> list[M]:
        """Return up to ``limit`` rows whose id begins with ``prefix``, by id."""
        # Not LIKE, which ignores case in SQLite and has wildcards.
        begins = func.substr(self._id, 1, len(prefix)) == prefix
        return self.read(conn, select(self._table.c.body).where(begins).order_by(self._id).limit(limit))

    def newest(
        self, conn: Connection, limit: int, *, before: Place | None = None, **equal: object
    ) -> list[M]:
        """
        Return rows, newest first.

        Args:
            conn: A connection in a transaction.
            limit: The maximum number.
            before: The cursor of the next page.
            equal: The values of columns; None allows any.
        """
        columns = self._table.c
        query = select(columns.body).where(
            *(columns[name] == _plain(value) for name, value in equal.items() if value is not None)
        )
        query = newest_first(query, columns.created_at, self._id, limit=limit, before=before)
        return self.read(conn, query)

    def read(self, conn: Connection, query: Select[Any], values: Mapping[str, Any] | None = None) -> list[M]:
        """Return the rows of a query for ``body``."""
        return [self._model.model_validate_json(body) for body in conn.execute(query, values).scalars()]


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value
