"""
Lists over HTTP in pages: ``limit`` and ``cursor`` go in, ``next`` comes out.

A cursor says where a page ended, not how many rows came before: what comes in meanwhile moves nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated, Any, Final, TypeVar

import orjson
from fastapi import Query, Response
from pydantic import BaseModel

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.server.middleware.etags import weak_tag

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=1000, description="Rows of a page, at most.")]
Cursor = Annotated[str | None, Query(description="`next` of the page before.")]

_PART: Final = 50
"""Rows that are written before others have the loop."""
_LARGEST: Final = 2**63 - 1
NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""Finds what PostgreSQL keeps in no text, or no database."""


class InvalidCursorError(QueenrightError):
    """Raised for a cursor that is none, or of another list; says the way out."""

    def __init__(self, cursor: str, what: str) -> None:
        super().__init__(
            f"the cursor {redact(cursor, 80)!r} is none of the list of {what}: "
            "give what was in `next` of its last page, as it was, or no cursor to begin at its beginning"
        )


def cursor_at(what: str, *place: float | int | str) -> str:
    """Return a cursor of the list of ``what``, at a place that ``place_of`` gives back."""
    said = json.dumps([what, *place], ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(said.encode()).rstrip(b"=").decode()


def place_of(cursor: str | None, what: str, *kinds: type[Any]) -> tuple[Any, ...] | None:
    """
    Return the place that a cursor says; None without one.

    Args:
        cursor: What came in.
        what: Which list it is for.
        kinds: What a place in this list is made of: float, int and str.

    Raises:
        InvalidCursorError: It is none of this list.
    """
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        said = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise InvalidCursorError(cursor, what) from None
    if not isinstance(said, list) or len(said) != len(kinds) + 1 or said[0] != what:
        raise InvalidCursorError(cursor, what)
    if not all(_is_a(kind, value) for kind, value in zip(kinds, said[1:], strict=True)):
        raise InvalidCursorError(cursor, what)
    return tuple(said[1:])


def _is_a(kind: type[Any], value: Any) -> bool:
    # What no database takes was in no cursor of ours.
    if kind is str:
        return isinstance(value, str) and not NO_TEXT.search(value)
    if isinstance(value, bool) or not isinstance(value, int | kind):
        return False
    return bool(abs(value) <= _LARGEST)  # nor is NaN


async def page(
    what: str,
    found: Sequence[T],
    limit: int,
    *,
    row: Callable[[T], dict[str, Any]],
    place: Callable[[T], tuple[float | int | str, ...]],
    backwards: bool = False,
    of_the_clock: Collection[str] = (),
    **more: Any,
) -> Response:
    """
    Return one page as JSON: ``{what: [...], "next": cursor or null}``.

    Args:
        what: The name of the list.
        found: One more than are shown, if there are so many.
        limit: How many are shown.
        row: What is shown of one, as JSON values.
        place: Where one stands in the list.
        backwards: Whether what came first in the list is shown last in the page.
        of_the_clock: What of a row changes with the clock alone, if all of that is known and at its top: the
            page's tag is made from the rest then, which is faster than to look for it afterwards.
        more: What else is in the answer.
    """
    shown = found[:limit]
    follows = cursor_at(what, *place(shown[-1])) if len(found) > limit else None
    ordered = reversed(shown) if backwards else shown
    rows, tagged = await _written((row(one) for one in ordered), of_the_clock)
    head = b"".join(b"%b:%b," % (_json(name), _json(value)) for name, value in more.items())
    body = b'{%b%b:[%b],"next":%b}' % (head, _json(what), rows, _json(follows))
    headers = {"ETag": weak_tag(head, tagged, _json(follows))} if of_the_clock else None
    return Response(body, headers=headers, media_type="application/json")


def json_answer(value: Any, *, status: int = 200) -> Response:
    """Return an answer in JSON: of plain values, as fast as it goes."""
    return Response(_json(value), status, media_type="application/json")


def as_json(one: BaseModel) -> dict[str, Any]:
    """Return a model as JSON values."""
    return one.model_dump(mode="json")


async def _written(rows: Iterable[dict[str, Any]], of_the_clock: Collection[str]) -> tuple[bytes, bytes]:
    """Return rows as JSON, and again without what is of the clock; a long list does not keep the loop."""
    parts, tagged = [], []
    for number, one in enumerate(rows, start=1):
        if of_the_clock:
            words = {name: one.pop(name) for name in of_the_clock}
            tagged.append(_json(one))
            parts.append(b"%b,%b" % (tagged[-1][:-1], _json(words)[1:]))
        else:
            parts.append(_json(one))
        if number % _PART == 0:
            await asyncio.sleep(0)
    return b",".join(parts), b",".join(tagged)


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # it takes no number of more than 64 bits
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
