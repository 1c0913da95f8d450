"""Check limits of JSON before parsing it, because the parser blocks the interpreter until it ends."""

from __future__ import annotations

import re
from typing import Final

from queenright.instrumentation.errors import QueenrightError

MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 400
"""Maximum digits of a number. Parsing time grows with their square."""

_OPENING_BRACKETS: Final = frozenset(b"[{")
_CHUNK_BYTES: Final = 256 * 1_024
"""Maximum bytes to scan in one call, because each call blocks the interpreter."""
_LONG_NUMBER: Final = re.compile(rb"(?<![0-9])[0-9]{%d}" % (MAX_DIGITS + 1))
_SURROGATE_ESCAPE: Final = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_NON_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


class JsonSizeError(QueenrightError):
    """Raised when JSON has too many values."""


class JsonFormatError(QueenrightError):
    """Raised when JSON is nested too deeply, has too long a number, or is not UTF-8."""


def check_json_size(body: bytes | bytearray, max_values: int) -> None:
    """
    Reject JSON that would take long to parse. The check itself takes bounded time. Strings count as cheap.

    Args:
        body: The body to parse. It need not be JSON.
        max_values: Maximum number of opening brackets, commas and colons outside strings.

    Raises:
        JsonSizeError: The body has more than ``max_values``.
        JsonFormatError: The body is nested more than `MAX_DEPTH` levels, has a number with over `MAX_DIGITS`
            digits, or contains a NUL byte, as UTF-16 and UTF-32 do.
    """
    if b"\0" in body:
        raise JsonFormatError(
            "the body has NUL bytes; send JSON as UTF-8 and write NUL characters as \\u0000"
        )
    brackets = body.count(b"[") + body.count(b"{")
    if (
        brackets <= MAX_DEPTH
        and brackets + body.count(b",") + body.count(b":") <= max_values
        and not _has_long_number(body)
    ):
        return
    # Strings may contain these characters. JSON has at most one more string than it has separators.
    text_outside_strings, string_count = _strip_strings(body, max_values + 2)
    open_count = text_outside_strings.count(b"[") + text_outside_strings.count(b"{")
    close_count = text_outside_strings.count(b"]") + text_outside_strings.count(b"}")
    if (
        max(
            open_count + text_outside_strings.count(b",") + text_outside_strings.count(b":"),
            close_count,
            string_count - 1,
        )
        > max_values
    ):
        raise JsonSizeError(f"the body has more than {max_values} values")
    depth = 0
    for bracket in text_outside_strings.translate(None, _NON_BRACKETS):
        depth += 1 if bracket in _OPENING_BRACKETS else -1
        if depth > MAX_DEPTH:
            raise JsonFormatError(f"the body is nested more than {MAX_DEPTH} levels deep; nest it less")
    if _has_long_number(text_outside_strings):
        raise JsonFormatError(
            f"the body has a number with more than {MAX_DIGITS} digits; send it as a string"
        )


def _strip_strings(body: bytes | bytearray, max_strings: int) -> tuple[bytearray, int]:
    """Return a body with each string replaced by a quote, and the number of strings."""
    text_outside = bytearray()
    start = quotes = 0
    while start < len(body) and quotes <= 2 * max_strings:
        chunk = body[start : start + _CHUNK_BYTES]
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
            # Do not split an escape sequence.
            chunk = body[start : start + _CHUNK_BYTES + 1]
        start += len(chunk)
        parts = chunk.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        text_outside += b'"'.join([b"", *parts[1::2]] if quotes % 2 else parts[::2])
        quotes += len(parts) - 1
    return text_outside, (quotes + 1) // 2


def _has_long_number(text: bytes | bytearray) -> bool:
    return any(
        _LONG_NUMBER.search(text, start, start + _CHUNK_BYTES + MAX_DIGITS) is not None
        for start in range(0, len(text), _CHUNK_BYTES)
    )


def replace_lone_surrogates(body: bytes | bytearray) -> bytes:
    """
    Replace lone surrogates in JSON by the replacement character.

    JavaScript programs send them when they cut a string in the middle of an emoji. UTF-8 cannot encode them.
    """
    return _SURROGATE_ESCAPE.sub(lambda match: match[1] or rb"\ufffd", body)
