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

_CHUNK_SIZE: Final = 50
"""Number of rows that are rendered before other requests may run."""
_MAX_INTEGER: Final = 2**63 - 1
UNSTORABLE_CHARACTERS: Final = re.compile("[\0\ud800-\udfff]")
"""Matches characters that a database cannot store in a text."""


@dataclass
class RowOrder:
    """
    The order of the rows of a page, which the gateway of a cluster uses to merge pages.

    Processes send it to each other, and may have different versions: do not rename or remove fields.
    """

    what: str = ""
    """The list's name in the model; empty if the response is not a page."""
    limit: int = 0
    is_descending: bool = False
    is_backwards: bool = False
    """Whether the page has these rows in reverse order."""
    cursors: list[str] = field(default_factory=list)
    """The cursor of each row."""
    ranks: list[list[float | int | str]] = field(default_factory=list)
    """The sort key of each row."""


row_order: Final[ContextVar[RowOrder | None]] = ContextVar("row_order", default=None)
"""The row order that `build_page` fills in for requests of the gateway."""


class InvalidCursorError(QueenrightError):
    """Raised when a cursor is malformed or belongs to another list."""

    def __init__(self, cursor: str, list_name: str) -> None:
        super().__init__(
            f"the cursor {redact(cursor, 80)!r} is not a cursor of the list of {list_name}; "
            "send `next` of its previous page unchanged, or no cursor for the first page"
        )


def encode_cursor(list_name: str, *position: float | int | str) -> str:
    """Return the cursor of a position in a list. ``decode_cursor`` is the inverse."""
    parts = json.dumps([list_name, *position], ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(parts.encode()).rstrip(b"=").decode()


def decode_cursor(cursor: str | None, list_name: str, *kinds: type[Any]) -> tuple[Any, ...] | None:
    """
    Return the position in a cursor; None without a cursor.

    Args:
        cursor: The cursor of the request.
        list_name: The name of the list.
        kinds: The types of the parts of the position: float, int or str.

    Raises:
        InvalidCursorError: The text is not a cursor of this list.
    """
    if cursor is None:
        return None
    try:
        padded_text = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded_text, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise InvalidCursorError(cursor, list_name) from None
    if not isinstance(parts, list) or len(parts) != len(kinds) + 1 or parts[0] != list_name:
        raise InvalidCursorError(cursor, list_name)
    if not all(_is_valid_part(kind, value) for kind, value in zip(kinds, parts[1:], strict=True)):
        raise InvalidCursorError(cursor, list_name)
    return tuple(parts[1:])


def _is_valid_part(kind: type[Any], value: Any) -> bool:
    # Queenright issues no cursor with a value that a database cannot store.
    if kind is str:
        return isinstance(value, str) and not UNSTORABLE_CHARACTERS.search(value)
    if isinstance(value, bool) or not isinstance(value, int | kind):
        return False
    return bool(abs(value) <= _MAX_INTEGER)  # also False for NaN


async def build_page(
    model: type[P],
    list_name: str,
    values: Sequence[T],
    limit: int,
    *,
    row: Callable[[T], Any],
    position: Callable[[T], tuple[float | int | str, ...]],
    rank: Callable[[T], tuple[float | int | str, ...]] | None = None,
    descending: bool = False,
    backwards: bool = False,
    **other_fields: Any,
) -> P:
    """
    Return one page of a list. A long page yields to other requests.

    Args:
        model: The model of the page.
        list_name: The name of the list in the model, and in its cursors.
        values: The values of the page, plus one if there is a next page.
        limit: Maximum number of rows of a page.
        row: Converts a value to a row.
        position: Returns the position of a value in the list.
        rank: Returns the sort key of a value, if positions cannot be compared across databases.
        descending: Whether the values are in descending order.
        backwards: Whether the page shows the values in reverse order.
        other_fields: Other fields of the model.
    """
    page_values = values[:limit]
    rows = []
    for number, item in enumerate(page_values, start=1):
        rows.append(row(item))
        if number % _CHUNK_SIZE == 0:
            await asyncio.sleep(0)
    if (order := row_order.get()) is not None:
        order.what, order.limit = list_name, limit
        order.is_descending, order.is_backwards = descending, backwards
        order.cursors = [encode_cursor(list_name, *position(item)) for item in page_values]
        order.ranks = [list((rank or position)(item)) for item in page_values]
    next_cursor = encode_cursor(list_name, *position(page_values[-1])) if len(values) > limit else None
    return model(**{list_name: rows[::-1] if backwards else rows, "next": next_cursor}, **other_fields)
