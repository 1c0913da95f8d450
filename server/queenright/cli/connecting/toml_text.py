"""Change a TOML document as text: comments, order and whitespace are kept."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

EMPTY: Final = ""
"""The document of a missing file."""


def load(text: str) -> Any:
    """
    Return the values of a document.

    Raises:
        ValueError: The text is not TOML.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def set_member(text: str, path: Sequence[str], value: Any) -> str:
    """Set a member of an existing table; a dict at the top level becomes a table."""
    document = _parse(text)
    is_table = len(path) == 1 and isinstance(value, dict)
    _get_value(document, path[:-1])[path[-1]] = tomlkit.item(value) if is_table else _to_inline_item(value)
    return tomlkit.dumps(document)


def append_item(text: str, path: Sequence[str], value: Any) -> str:
    """Append an item to an existing list."""
    document = _parse(text)
    _get_value(document, path).append(_to_inline_item(value))
    return tomlkit.dumps(document)


def remove(text: str, path: Sequence[str | int]) -> str:
    """Remove an existing member of a table, or item of a list."""
    document = _parse(text)
    del _get_value(document, path[:-1])[path[-1]]
    return tomlkit.dumps(document)


def _parse(text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise ValueError(str(error)) from None


def _get_value(document: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        document = document[step]
    return document


def _to_inline_item(value: Any) -> Any:
    if not isinstance(value, dict):
        return tomlkit.item(value)
    table = tomlkit.inline_table()
    for key, member in value.items():
        table.append(key, _to_inline_item(member))
    return table
