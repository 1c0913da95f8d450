"""
Change a JSON document as text: everything except the changed member keeps its formatting.

Comments and trailing commas, which some coding agents accept, are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]  # in the standard library, untyped
from typing import Any, Final, NoReturn

EMPTY: Final = "{}\n"
"""The document of a missing file."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_SCALAR: Final = re.compile(r"[^\s,\]}]+")
_LINE_INDENT: Final = re.compile(r"[ \t]*")
_FIRST_INDENT: Final = re.compile(r"\A\s*[{\[][ \t]*\r?\n([ \t]+)")
_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT: Final = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA: Final = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")
_LINE_COMMENT: Final = re.compile(r"[ \t]*(?://[^\n]*|/\*[^\n]*?\*/[ \t]*(?=\r?\n))")


@dataclass(slots=True)
class _Node:
    """A value: its position in the text, and its children."""

    start: int
    end: int = 0
    keys: list[str] = field(default_factory=list)
    """Keys of an object, one per child."""
    children: list[_Node] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Start of each member or item, including its key."""


def load(text: str) -> Any:
    """
    Return the values of a document.

    Raises:
        ValueError: The text is not JSON; a ``json.JSONDecodeError`` has the position.
    """
    try:
        return json.loads(_blank_comments(text), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def set_member(text: str, path: Sequence[str], value: Any) -> str:
    """Set a member of an existing object."""
    parent = _find_node(text, path[:-1])
    if path[-1] not in parent.keys:
        return _insert_value(text, parent, f"{_dump(path[-1])}: ", value)
    child = parent.children[_find_last_index(parent.keys, path[-1])]
    return text[: child.start] + _format_value(text, child.start, value) + text[child.end :]


def append_item(text: str, path: Sequence[str], value: Any) -> str:
    """Append an item to an existing list."""
    return _insert_value(text, _find_node(text, path), "", value)


def remove(text: str, path: Sequence[str | int]) -> str:
    """Remove an existing member of an object, or item of a list."""
    parent = _find_node(text, path[:-1])
    key = path[-1]
    index = key if isinstance(key, int) else _find_last_index(parent.keys, key)
    start, end = parent.starts[index], parent.children[index].end
    if index:
        before = parent.children[index - 1].end
        return text[:before] + _remove_comma(text[before:start]).rstrip() + text[end:]
    if len(parent.children) > 1:
        return text[:start] + _remove_comma(text[end : parent.starts[1]]).lstrip() + text[parent.starts[1] :]
    content = text[parent.start + 1 : start].rstrip() + _remove_comma(text[end : parent.end - 1])
    return text[: parent.start + 1] + (content if content.strip() else "") + text[parent.end - 1 :]


def _remove_comma(gap: str) -> str:
    """Return the text between two members without the comma; comments are kept."""
    comma = _blank_comments(gap, trailing_commas=True).find(",")
    return gap if comma < 0 else gap[:comma] + gap[comma + 1 :]


def _insert_value(text: str, parent: _Node, key: str, value: Any) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    if parent.children:
        position = parent.children[-1].end
        plain_gap = _blank_comments(text[position : parent.end - 1], trailing_commas=True)
        comma = "" if "," in plain_gap else ","
        space = text[_find_line_start(text, parent.starts[-1]) : parent.starts[-1]]
        is_own_line = "\n" in text[parent.start : parent.starts[-1]] and not space.strip()
        member = key + _format_value(text, parent.starts[-1], value)
        if not is_own_line:
            return f"{text[:position]}, {member}{text[position:]}"
        # A comment on the last member's line stays there.
        end = position + plain_gap.index(",") + 1 if not comma else position
        note = _LINE_COMMENT.match(text, end)
        end = note.end() if note else end
        return f"{text[:position]}{comma}{text[position:end]}{newline}{space}{member}{text[end:]}"
    outer = _get_indent(text, parent.start)
    comments = text[parent.start + 1 : parent.end - 1].rstrip()
    if not _is_multiline(text):
        member = key + _format_value(text, parent.start, value)
        return text[: parent.start + 1] + comments + member + text[parent.end - 1 :]
    inner = outer + _detect_indent_unit(text)
    content = _dump(value, _detect_indent_unit(text)).replace("\n", newline + inner)
    space = f"{newline}{inner}{key}{content}{newline}{outer}"
    return text[: parent.start + 1] + comments + space + text[parent.end - 1 :]


def _format_value(text: str, position: int, value: Any) -> str:
    """Return a value as text, indented for its position."""
    if not _is_multiline(text):
        return _dump(value)
    newline = "\r\n" if "\r\n" in text else "\n"
    content = _dump(value, _detect_indent_unit(text))
    return content.replace("\n", newline + _get_indent(text, position))


def _dump(value: Any, indent: str | None = None) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    # JSON can hold a lone surrogate only as an escape.
    return text if text.isascii() or _is_encodable(text) else json.dumps(value, indent=indent)


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_multiline(text: str) -> bool:
    return "\n" in text.strip() or text.strip() == EMPTY.strip()


def _detect_indent_unit(text: str) -> str:
    match = _FIRST_INDENT.match(text)
    return match[1] if match else "  "


def _find_line_start(text: str, position: int) -> int:
    return text.rfind("\n", 0, position) + 1


def _get_indent(text: str, position: int) -> str:
    match = _LINE_INDENT.match(text, _find_line_start(text, position))
    return match[0] if match else ""


def _find_last_index(keys: list[str], key: str) -> int:
    """Return the index of a key; the last of duplicate keys counts."""
    return len(keys) - 1 - keys[::-1].index(key)


def _blank_comments(text: str, *, trailing_commas: bool = False) -> str:
    """Return a document with blanks for comments and trailing commas, so that positions stay the same."""
    plain = _COMMENT.sub(_replace_with_blanks, text)
    return plain if trailing_commas else _TRAILING_COMMA.sub(_replace_with_blanks, plain)


def _replace_with_blanks(match: re.Match[str]) -> str:
    token = match[0]
    return token if token.startswith('"') else re.sub(r"[^\r\n]", " ", token)


def _find_node(text: str, path: Sequence[str | int]) -> _Node:
    plain = _blank_comments(text)
    node = _parse_value(plain, _skip_space(plain, 0))
    for step in path:
        node = node.children[step if isinstance(step, int) else _find_last_index(node.keys, step)]
    return node


def _parse_value(text: str, position: int) -> _Node:
    """Return the value that starts at a position of valid JSON."""
    node = _Node(position)
    opening = text[position]
    if opening == '"':
        node.end = scanstring(text, position + 1, True)[1]
    elif opening not in "{[":
        match = _SCALAR.match(text, position)
        node.end = match.end() if match else position
    else:
        position = _skip_space(text, position + 1)
        while text[position] not in "}]":
            node.starts.append(position)
            if opening == "{":
                key, position = scanstring(text, position + 1, True)
                node.keys.append(key)
                position = _skip_space(text, _skip_space(text, position) + 1)
            child = _parse_value(text, position)
            node.children.append(child)
            position = _skip_space(text, child.end)
            if text[position] == ",":
                position = _skip_space(text, position + 1)
        node.end = position + 1
    return node


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")
