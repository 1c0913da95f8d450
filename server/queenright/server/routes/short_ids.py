"""Abbreviated ids in paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import HTTPException

MAX_CANDIDATES: Final = 5
"""Maximum number of matching ids in an error message."""
MIN_PREFIX_LENGTH: Final = 8
"""Minimum characters of an abbreviated id. A shorter one could match a different id by a typing error."""


def complete_id(prefix: str, item_type: str, ids: Mapping[str, str]) -> str:
    """
    Return the only id that begins with ``prefix``, or ``prefix`` itself if there is no match.

    Args:
        prefix: The id, or its beginning.
        item_type: The kind of item, in the plural, for the error message.
        ids: The known ids, each with a name that people recognize.

    Raises:
        HTTPException: 409 if several ids begin with ``prefix``, or if one does and ``prefix`` is shorter than
            ``MIN_PREFIX_LENGTH``. The message has the first matches.
    """
    matches = [id_ for id_ in ids if id_.startswith(prefix)]
    if prefix in matches or not matches:
        return prefix
    if len(matches) > 1:
        id_list = ", ".join(f"{id_} ({ids[id_]})" for id_ in matches[:MAX_CANDIDATES])
        count = f"more than {MAX_CANDIDATES}" if len(matches) > MAX_CANDIDATES else len(matches)
        raise HTTPException(
            409, f"{count} {item_type} begin with {prefix[:80]!r}: {id_list}; give more characters of the id"
        )
    if len(prefix) < MIN_PREFIX_LENGTH:
        raise HTTPException(
            409,
            f"{prefix!r} is too short for an abbreviated id: give at least {MIN_PREFIX_LENGTH} characters of "
            f"{matches[0]} ({ids[matches[0]]})",
        )
    return matches[0]
