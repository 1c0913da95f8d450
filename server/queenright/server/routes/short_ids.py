"""Abbreviated ids in paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import HTTPException

MAX_CANDIDATES: Final = 5
"""How many matches an error names."""
MIN_PREFIX_LENGTH: Final = 8
"""Characters of an abbreviated id, so that a slip of the keys names nothing."""


def complete_id(prefix: str, what: str, ids: Mapping[str, str]) -> str:
    """
    Return the only id that begins with ``prefix``; without a match, ``prefix`` itself.

    Args:
        prefix: The id, or its beginning.
        what: What the id identifies, in the plural, for the error.
        ids: The known ids, each with what a person knows it by.

    Raises:
        HTTPException: 409 if several ids begin with ``prefix``, or one does and ``prefix`` is shorter than
            ``MIN_PREFIX_LENGTH``; names the first.
    """
    matches = [id_ for id_ in ids if id_.startswith(prefix)]
    if prefix in matches or not matches:
        return prefix
    if len(matches) > 1:
        id_list = ", ".join(f"{id_} ({ids[id_]})" for id_ in matches[:MAX_CANDIDATES])
        count = f"more than {MAX_CANDIDATES}" if len(matches) > MAX_CANDIDATES else len(matches)
        raise HTTPException(409, f"{count} {what} begin with {prefix[:80]!r}: {id_list}; give more of the id")
    if len(prefix) < MIN_PREFIX_LENGTH:
        raise HTTPException(
            409,
            f"{prefix!r} is too short for an abbreviated id: give at least {MIN_PREFIX_LENGTH} characters of "
            f"{matches[0]} ({ids[matches[0]]})",
        )
    return matches[0]
