"""Changes a TOML document as text: comments, order and space stay."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

EMPTY: Final = ""
"""The document of a file that is not there."""


def load(text: str) -> Any:
    """
    Return the values of a document.

    Raises:
        ValueError: It is not TOML.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def set_member(text: str, path: Sequence[str], value: Any) -> str:
    """Set a member of a table that exists; at the top, a table of its own."""
    document = _parse(text)
    is_table = len(path) == 1 and isinstance(value, dict)
    _find(document, path[:-1])[path[-1]] = tomlkit.item(value) if is_table else _inline(value)
    return tomlkit.dumps(document)


def append_item(text: str, path: Sequence[str], value: Any) -> str:
    """Append an item to a list that exists."""
    document = _parse(text)
    _find(document, path).append(_inline(value))
    return tomlkit.dumps(document)


def remove(text: str, path: Sequence[str | int]) -> str:
    """Remove a member of a table, or the item of a list at an index; it exists."""
    document = _parse(text)
    del _find(document, path[:-1])[path[-1]]
    return tomlkit.dumps(document)


def _parse(text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise ValueError(str(error)) from None


def _find(document: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        document = document[step]
    return document


def _inline(value: Any) -> Any:
    if not isinstance(value, dict):
        return tomlkit.item(value)
    table = tomlkit.inline_table()
    for key, inner in value.items():
        table.append(key, _inline(inner))
    return table
