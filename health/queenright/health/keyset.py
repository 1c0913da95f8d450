"""Pages of what is kept, newest first: each begins where the one before it ended, whatever has come since."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, literal, tuple_

Place = tuple[float, str]
"""Where a page ended: when the last of it was created, in seconds since the epoch, and its id."""


def newest_first(
    query: Select[Any],
    created_at: ColumnElement[float],
    id_: ColumnElement[str],
    *,
    limit: int,
    before: Place | None = None,
) -> Select[Any]:
    """
    Return a query for at most ``limit`` rows, newest first, and only those that come after ``before``.

    Args:
        query: What is asked for.
        created_at: The column that never changes and says when a row was made.
        id_: What tells rows of one moment apart.
        limit: At most so many.
        before: Where the page before this one ended.
    """
    if before is not None:
        query = query.where(tuple_(created_at, id_) < tuple_(literal(before[0]), literal(before[1])))
    return query.order_by(created_at.desc(), id_.desc()).limit(limit)
