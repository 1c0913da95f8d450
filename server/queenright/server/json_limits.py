"""What JSON may hold: checked before it is parsed, as the parser holds the interpreter until it is done."""

from __future__ import annotations

import re
from typing import Final

from queenright.instrumentation.errors import QueenrightError

MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 400
"""Digits of a number: the work of reading one grows with their square."""

_OPENING: Final = frozenset(b"[{")
_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_LONG_NUMBER: Final = re.compile(rb"(?<![0-9])[0-9]{%d}" % (MAX_DIGITS + 1))
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


class JsonSizeError(QueenrightError):
    """Raised when JSON holds more values than are allowed."""


class JsonFormatError(QueenrightError):
    """Raised when JSON is nested too deep, has a number that is too long, or is not UTF-8."""


def check_json_size(body: bytes | bytearray, max_values: int) -> None:
    """
    Refuse JSON that would take long to parse. The work is bounded; texts cost next to nothing.

    Args:
        body: What is going to be parsed. It need not be JSON.
        max_values: How many opening brackets, commas and colons it may have outside of texts.

    Raises:
        JsonSizeError: It has more.
        JsonFormatError: It is nested more than `MAX_DEPTH` deep, has a number of more than `MAX_DIGITS`
            digits, or a NUL, as in UTF-16 and UTF-32, where texts end elsewhere.
    """
    if b"\0" in body:
        raise JsonFormatError(
            "the body has NUL bytes; send JSON as UTF-8 and write NUL characters as \\u0000"
        )
    brackets = body.count(b"[") + body.count(b"{")
    if (
        brackets <= MAX_DEPTH
        and brackets + body.count(b",") + body.count(b":") <= max_values
        and not _LONG_NUMBER.search(body)
    ):
        return
    # Texts have such signs, too: now without them. JSON has at most one text more than it has signs.
    rest, texts = _TEXT.subn(b'"', body, max_values + 2)
    opened = rest.count(b"[") + rest.count(b"{")
    closed = rest.count(b"]") + rest.count(b"}")
    if max(opened + rest.count(b",") + rest.count(b":"), closed, texts - 1) > max_values:
        raise JsonSizeError(f"the body holds more than {max_values} values")
    depth = 0
    for sign in rest.translate(None, _NO_BRACKETS):
        depth += 1 if sign in _OPENING else -1
        if depth > MAX_DEPTH:
            raise JsonFormatError(f"the body is nested more than {MAX_DEPTH} deep")
    if _LONG_NUMBER.search(rest):
        raise JsonFormatError(f"the body has a number of more than {MAX_DIGITS} digits")
