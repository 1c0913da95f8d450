"""Adds settings to a document, and removes what was added: pure functions on its text."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from queenright.cli.connecting import json_text, toml_text
from queenright.cli.connecting.errors import SettingsError

Path = tuple[str, ...]

FORMATS: Final[Mapping[str, ModuleType]] = {".json": json_text, ".toml": toml_text}
"""By the end of a file's name."""


@dataclass(frozen=True, slots=True)
class Member:
    """A value that an object of the document is to have."""

    path: Path
    value: Any
    is_list: bool = False
    """It is text, a comma between its items, each of which is ``key=value``; others' items stay."""


@dataclass(frozen=True, slots=True)
class Item:
    """A value that a list of the document is to hold."""

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class Change:
    """What was done to a document: what has to be undone."""

    kind: str
    """``member``, ``item``, or ``container``: an object or list that was made for one of the others."""
    path: Path
    value: Any
    has_old: bool = False
    old: Any = None


class SettingsConflictError(SettingsError):
    """
    Raised for settings that have other values already.

    Args:
        values: What is there, by the name of the setting.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        super().__init__(f"set to something else already: {', '.join(values)}")


def add(
    text: str,
    wanted: Sequence[Member | Item],
    suffix: str,
    *,
    replace: bool = False,
    replaced: Collection[Path] = (),
) -> tuple[str, list[Change]]:
    """
    Return the document with what is wanted, and what was done to it.

    Args:
        text: The document.
        wanted: What it is to have.
        suffix: Which format it has, by the end of a file's name.
        replace: Replace settings that have another value.
        replaced: Settings that may be replaced in any case.

    Raises:
        SettingsConflictError: A setting has another value.
        SettingsError: A setting is in the way that is of another type.
    """
    editor = _Editor(text, suffix)
    conflicts: dict[str, Any] = {}
    for one in wanted:
        parents = one.path[:-1] if isinstance(one, Member) else one.path
        for end in range(len(parents) + 1):
            is_list = isinstance(one, Item) and end == len(parents)
            editor.ensure_container(parents[:end], list if is_list else dict)
        if isinstance(one, Item):
            if not any(same(one.value, other) for other in editor.at(one.path)):
                editor.append(one.path, one.value)
            continue
        old = editor.at(parents).get(one.path[-1])
        if one.path[-1] not in editor.at(parents):
            editor.set(one.path, one.value)
        elif one.is_list and isinstance(old, str):
            if (value := _joined(old, one.value)) != old:
                editor.replace(one.path, value, old)
        elif not same(old, one.value):
            if replace or one.path in replaced:
                editor.replace(one.path, one.value, old)
            else:
                conflicts[".".join(one.path)] = old
    if conflicts:
        raise SettingsConflictError(conflicts)
    return editor.text, editor.changes


def undo(text: str, changes: Sequence[Change], suffix: str) -> str:
    """Return the document without what ``changes`` did to it; what was changed since then stays."""
    editor = _Editor(text, suffix)
    for change in reversed(changes):
        parents, last = change.path[:-1], change.path[-1] if change.path else ""
        if change.kind == "item":
            items = editor.at(change.path)
            index = next((n for n, one in enumerate(items or ()) if same(one, change.value)), None)
            if isinstance(items, list) and index is not None:
                editor.remove((*change.path, index))
            continue
        parent = editor.at(parents)
        if not isinstance(parent, dict) or last not in parent or not same(parent[last], change.value):
            continue
        if change.has_old:
            editor.set(change.path, change.old)
        else:
            editor.remove(change.path)
    return editor.text


def same(one: Any, other: Any) -> bool:
    """Return whether two values of documents are equal: ``1`` is not ``true``."""
    return _canonical(one) == _canonical(other)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _joined(old: str, new: str) -> str:
    keys = {item.partition("=")[0].strip() for item in old.split(",")}
    missing = [item for item in new.split(",") if item.partition("=")[0] not in keys]
    return ",".join([*([old] if old.strip() else []), *missing])


class _Editor:
    """A document that is changed step by step; after each, its text says what it has to say."""

    def __init__(self, text: str, suffix: str) -> None:
        self.text = text
        self.changes: list[Change] = []
        self._format = FORMATS[suffix]
        self._document = self._format.load(text)

    def at(self, path: Sequence[str | int]) -> Any:
        """Return the value at a path, or None."""
        found = self._document
        for step in path:
            if not isinstance(found, dict) or step not in found:
                return None
            found = found[step]
        return found

    def ensure_container(self, path: Path, kind: type) -> None:
        found = self.at(path)
        parent = self.at(path[:-1])
        if path and path[-1] not in parent:
            self._change(self._format.set_member, path, kind())
            self.changes.append(Change("container", path, kind()))
        elif not isinstance(found, kind):
            expected = "a list" if kind is list else "an object"
            where = ".".join(path) if path else "the document"
            raise SettingsError(f"{where} must be {expected} and is {json.dumps(found, default=str)[:60]}")

    def set(self, path: Path, value: Any) -> None:
        self._change(self._format.set_member, path, value)
        self.changes.append(Change("member", path, value))

    def replace(self, path: Path, value: Any, old: Any) -> None:
        self._change(self._format.set_member, path, value)
        self.changes.append(Change("member", path, value, True, old))

    def append(self, path: Path, value: Any) -> None:
        self._change(self._format.append_item, path, value)
        self.changes.append(Change("item", path, value))

    def remove(self, path: Sequence[str | int]) -> None:
        self._change(self._format.remove, path)

    def _change(self, edit: Callable[..., str], path: Sequence[str | int], *value: Any) -> None:
        expected = copy.deepcopy(self._document)
        parent: Any = expected
        for step in path[:-1]:
            parent = parent[step]
        if edit is self._format.append_item:
            parent[path[-1]].append(value[0])
        elif value:
            parent[path[-1]] = value[0]
        else:
            del parent[path[-1]]
        try:
            self.text = edit(self.text, path, *value)
            self._document = self._format.load(self.text)
        except Exception as error:
            raise SettingsError(f"{_name(path)} cannot be changed here ({error})") from None
        if not same(self._document, expected):
            raise SettingsError(f"{_name(path)} cannot be changed without changing something else")


def _name(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))
