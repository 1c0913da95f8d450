"""Add settings to a JSON or TOML document and remove them again. Pure functions on the text."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from queenright.cli.connecting import json_text, toml_text
from queenright.cli.connecting.errors import AgentSettingsError

KeyPath = tuple[str, ...]

FORMATS: Final[Mapping[str, ModuleType]] = {".json": json_text, ".toml": toml_text}
"""By file suffix."""


@dataclass(frozen=True, slots=True)
class RequiredKey:
    """A key that an object of the document must have."""

    path: KeyPath
    value: Any
    is_list: bool = False
    """Whether the value is a comma-separated list of ``key=value``; other items are kept."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item that a list of the document must contain."""

    path: KeyPath
    value: Any


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """One change of a document, as needed to undo it."""

    kind: str
    """``member``, ``item``, or ``container`` (an object or list that was created for one of the others)."""
    path: KeyPath
    value: Any
    has_old: bool = False
    old: Any = None


class SettingsConflictError(AgentSettingsError):
    """
    Raised for settings that already have other values.

    Args:
        values: The existing values, by setting.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        super().__init__(f"already set to another value: {', '.join(values)}")


def add(
    text: str,
    requirements: Sequence[RequiredKey | Item],
    suffix: str,
    *,
    replace: bool = False,
    own_paths: Collection[KeyPath] = (),
) -> tuple[str, list[SettingsChange]]:
    """
    Return the document with the required settings, and the changes.

    Args:
        text: The document.
        requirements: Settings that it must have.
        suffix: File suffix, which selects the format.
        replace: Replace settings that have another value.
        own_paths: Settings that are replaced in any case.

    Raises:
        SettingsConflictError: A setting has another value.
        AgentSettingsError: An existing setting has another type.
    """
    editor = _Editor(text, suffix)
    conflicts: dict[str, Any] = {}
    for change in requirements:
        parents = change.path[:-1] if isinstance(change, RequiredKey) else change.path
        for length in range(len(parents) + 1):
            is_list = isinstance(change, Item) and length == len(parents)
            editor.ensure_container(parents[:length], list if is_list else dict)
        if isinstance(change, Item):
            if not any(is_same(change.value, existing) for existing in editor.at(change.path)):
                editor.append(change.path, change.value)
            continue
        old_value = editor.at(parents).get(change.path[-1])
        if change.path[-1] not in editor.at(parents):
            editor.set(change.path, change.value)
        elif change.is_list and isinstance(old_value, str):
            if (value := _join_lists(old_value, change.value)) != old_value:
                editor.replace(change.path, value, old_value)
        elif not is_same(old_value, change.value):
            if replace or change.path in own_paths:
                editor.replace(change.path, change.value, old_value)
            else:
                conflicts[".".join(change.path)] = old_value
    if conflicts:
        raise SettingsConflictError(conflicts)
    return editor.text, editor.changes


def undo(text: str, changes: Sequence[SettingsChange], suffix: str) -> str:
    """Return the document with ``changes`` undone; later changes are kept."""
    editor = _Editor(text, suffix)
    for change in reversed(changes):
        parents, last = change.path[:-1], change.path[-1] if change.path else ""
        if change.kind == "item":
            items = editor.at(change.path)
            index = next((n for n, item in enumerate(items or ()) if is_same(item, change.value)), None)
            if isinstance(items, list) and index is not None:
                editor.remove((*change.path, index))
            continue
        parent = editor.at(parents)
        if not isinstance(parent, dict) or last not in parent or not is_same(parent[last], change.value):
            continue
        if change.has_old:
            editor.set(change.path, change.old)
        else:
            editor.remove(change.path)
    return editor.text


def is_same(first: Any, second: Any) -> bool:
    """Return whether two values are equal. Unlike in Python, ``1`` is not ``true``."""
    return _canonicalize(first) == _canonicalize(second)


def _canonicalize(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _join_lists(old: str, new: str) -> str:
    keys = {item.partition("=")[0].strip() for item in old.split(",")}
    missing = [item for item in new.split(",") if item.partition("=")[0] not in keys]
    return ",".join([*([old] if old.strip() else []), *missing])


class _Editor:
    """Edits a document step by step, and verifies after each step that nothing else changed."""

    def __init__(self, text: str, suffix: str) -> None:
        self.text = text
        self.changes: list[SettingsChange] = []
        self._format = FORMATS[suffix]
        self._document = self._format.load(text)

    def at(self, path: Sequence[str | int]) -> Any:
        """Return the value at a path, or None."""
        node = self._document
        for step in path:
            if not isinstance(node, dict) or step not in node:
                return None
            node = node[step]
        return node

    def ensure_container(self, path: KeyPath, kind: type) -> None:
        node = self.at(path)
        parent = self.at(path[:-1])
        if path and path[-1] not in parent:
            self._change(self._format.set_member, path, kind())
            self.changes.append(SettingsChange("container", path, kind()))
        elif not isinstance(node, kind):
            expected_value = "a list" if kind is list else "an object"
            location = ".".join(path) if path else "the document"
            raise AgentSettingsError(
                f"{location} must be {expected_value} and is {json.dumps(node, default=str)[:60]}"
            )

    def set(self, path: KeyPath, value: Any) -> None:
        self._change(self._format.set_member, path, value)
        self.changes.append(SettingsChange("member", path, value))

    def replace(self, path: KeyPath, value: Any, old: Any) -> None:
        self._change(self._format.set_member, path, value)
        self.changes.append(SettingsChange("member", path, value, True, old))

    def append(self, path: KeyPath, value: Any) -> None:
        self._change(self._format.append_item, path, value)
        self.changes.append(SettingsChange("item", path, value))

    def remove(self, path: Sequence[str | int]) -> None:
        self._change(self._format.remove, path)

    def _change(self, edit: Callable[..., str], path: Sequence[str | int], *value: Any) -> None:
        expected_value = copy.deepcopy(self._document)
        parent: Any = expected_value
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
            raise AgentSettingsError(f"{_format_path(path)} cannot be changed: {error}") from None
        if not is_same(self._document, expected_value):
            raise AgentSettingsError(f"{_format_path(path)} cannot be changed without side effects")


def _format_path(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))
