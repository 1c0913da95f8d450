"""
Cursor pagination: a list takes ``limit`` and ``cursor``, and returns ``next``.

A cursor names the row where a page ended, not an offset, so that new rows do not shift the pages.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

from fastapi import Query

from queenright.api.base_model import ApiModel
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact

T = TypeVar("T")
P = TypeVar("P", bound=ApiModel)

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of rows.")]
Cursor = Annotated[str | None, Query(description="`next` of the previous page.")]

_PART: Final = 50
"""Rows rendered before other requests may run."""
_LARGEST: Final = 2**63 - 1
NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""Finds characters that PostgreSQL, or any database, cannot store in a text."""


@dataclass
class RowOrder:
    """The order of the rows of a page, with which pages of several partitions of a cluster are merged."""

    what: str = ""
    """The name of the list; empty: the response is not a page."""
    limit: int = 0
    is_descending: bool = False
    is_backwards: bool = False
    """Whether the page shows the first of these rows last."""
    cursors: list[str] = field(default_factory=list)
    """The cursor of the place of each row."""
    ranks: list[list[float | int | str]] = field(default_factory=list)
    """What each row is ordered by."""


row_order: Final[ContextVar[RowOrder | None]] = ContextVar("row_order", default=None)
"""Filled by `page` if a gateway asks for it."""


class InvalidCursorError(QueenrightError):
    """Raised for a cursor that is malformed, or of another list."""

    def __init__(self, cursor: str, what: str) -> None:
        super().__init__(
            f"the cursor {redact(cursor, 80)!r} is not a cursor of the list of {what}; "
            "send `next` of its previous page unchanged, or no cursor for the first page"
        )


def cursor_at(what: str, *place: float | int | str) -> str:
    """Return the cursor of a place in the list of ``what``; ``place_of`` returns the place."""
    parts = json.dumps([what, *place], ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(parts.encode()).rstrip(b"=").decode()


def place_of(cursor: str | None, what: str, *kinds: type[Any]) -> tuple[Any, ...] | None:
    """
    Return the place that a cursor names; None without a cursor.

    Args:
        cursor: The cursor of the request.
        what: The name of the list.
        kinds: The types of the parts of a place: float, int and str.

    Raises:
        InvalidCursorError: The text is not a cursor of this list.
    """
    if cursor is None:
        return None
    try:
        padded_text = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded_text, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise InvalidCursorError(cursor, what) from None
    if not isinstance(parts, list) or len(parts) != len(kinds) + 1 or parts[0] != what:
        raise InvalidCursorError(cursor, what)
    if not all(_is_a(kind, value) for kind, value in zip(kinds, parts[1:], strict=True)):
        raise InvalidCursorError(cursor, what)
    return tuple(parts[1:])


def _is_a(kind: type[Any], value: Any) -> bool:
    # No cursor of ours contains a value that a database cannot store.
    if kind is str:
        return isinstance(value, str) and not NO_TEXT.search(value)
    if isinstance(value, bool) or not isinstance(value, int | kind):
        return False
    return bool(abs(value) <= _LARGEST)  # False for NaN, too


async def page(
    model: type[P],
    what: str,
    values: Sequence[T],
    limit: int,
    *,
    row: Callable[[T], Any],
    place: Callable[[T], tuple[float | int | str, ...]],
    rank: Callable[[T], tuple[float | int | str, ...]] | None = None,
    descending: bool = False,
    backwards: bool = False,
    **more: Any,
) -> P:
    """
    Return one page of a list. A long page yields to other requests.

    Args:
        model: The model of the page.
        what: The name of the list in the model, and in its cursors.
        values: The values of the page, and one more if there is a next page.
        limit: How many rows a page has.
        row: Makes the row of a value.
        place: Returns the place of a value in the list.
        rank: Returns what the list is ordered by, if its places are numbers of one database.
        descending: Whether the values fall by their rank.
        backwards: Whether the page shows the list's first value last.
        more: Other fields of the model.
    """
    page_values = values[:limit]
    rows = []
    for number, item in enumerate(page_values, start=1):
        rows.append(row(item))
        if number % _PART == 0:
            await asyncio.sleep(0)
    if (order := row_order.get()) is not None:
        order.what, order.limit = what, limit
        order.is_descending, order.is_backwards = descending, backwards
        order.cursors = [cursor_at(what, *place(item)) for item in page_values]
        order.ranks = [list((rank or place)(item)) for item in page_values]
    following = cursor_at(what, *place(page_values[-1])) if len(values) > limit else None
    return model(**{what: rows[::-1] if backwards else rows, "next": following}, **more)
