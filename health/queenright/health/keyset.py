"""Keyset pagination, newest first: a page is stable however many rows are added meanwhile."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, literal, tuple_

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
    """
    Return a query for the newest ``limit`` rows after the position ``before``.

    Args:
        query: The query without order and limit.
        created_at: The immutable creation time of a row.
        id_: The id, which orders rows of the same time.
        limit: The maximum number of rows.
        before: The position where the previous page ended.
    """
    if before is not None:
        query = query.where(tuple_(created_at, id_) < tuple_(literal(before[0]), literal(before[1])))
    return query.order_by(created_at.desc(), id_.desc()).limit(limit)
