"""Limits of JSON bodies, which are checked before parsing (B127)."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.server.http import json_limits
from queenright.server.http.json_limits import (
    MAX_DEPTH,
    MAX_DIGITS,
    JsonFormatError,
    JsonSizeError,
    check_json_size,
)

LIMIT = 1_000

JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(alphabet='[]{},:"\\a1'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[{"\\:'), inner),
    max_leaves=40,
)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * LIMIT + b"1]",
        b"[" + b"1," * (LIMIT + 1) + b"1]",
        b"{" + b'"":{},' * LIMIT + b'"":1}',
        b"[]" * 65 + b"]" * LIMIT,
        b"[]" * 65 + b'""' * (LIMIT + 2),
        b'["' + b'\\"' * LIMIT + b'"' + b",1" * (LIMIT + 1) + b"]",
    ],
)
def test_body_with_too_many_values_is_rejected(body: bytes) -> None:
    with pytest.raises(JsonSizeError, match="more than 1000 values"):
        check_json_size(body, LIMIT)


STRING_PATTERN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("|\Z)', re.DOTALL)


@given(JSON_VALUES, st.integers(1, 9))
def test_strings_are_found_at_any_chunk_boundary(value: object, chunk_size: int) -> None:
    """B127: a body is checked in chunks, so that no call blocks the interpreter for long."""
    body = json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_limits, "_CHUNK_BYTES", chunk_size)
        outside_strings, texts = json_limits._strip_strings(body, LIMIT)
    assert (bytes(outside_strings), texts) == STRING_PATTERN.subn(b'"', body)


@pytest.mark.parametrize("last_bytes", [b"1" * MAX_DIGITS, b"1" * MAX_DIGITS + b"1"])
@pytest.mark.parametrize("chunk_size", [1, 7, MAX_DIGITS, MAX_DIGITS + 1, 1_000_000])
def test_long_number_is_found_at_any_chunk_boundary(
    last_bytes: bytes, chunk_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_limits, "_CHUNK_BYTES", chunk_size)

    assert json_limits._has_long_number(b"1 " * 50 + last_bytes) == (len(last_bytes) > MAX_DIGITS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" + b"1," * (LIMIT - 1) + b"1]",
        b'{"x":"' + b"[,:{" * LIMIT + b'"}',
        b'{"x":"' + b'\\"[' * LIMIT + b'"}',
        b'["' + b"1" * 2 * MAX_DIGITS + b'"]',
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b"[" + b"[]," * (LIMIT // 2 - 1) + b"1]",
    ],
)
def test_strings_do_not_count_as_values_and_width_does_not_count_as_depth(body: bytes) -> None:
    check_json_size(body, LIMIT)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" * (MAX_DEPTH + 1), "nested more than 64 levels deep"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nested more than 64 levels deep"),
        (b"[" + b"1" * (MAX_DIGITS + 1) + b"]", "more than 400 digits"),
        (b'["' + b"1" * 500 + b'",-' + b"1" * 500 + b"]", "more than 400 digits"),
        ('["\u2200[[]]"]'.encode("utf-16"), "send JSON as UTF-8"),
    ],
)
def test_expensive_json_is_rejected(body: bytes, reason: str) -> None:
    with pytest.raises(JsonFormatError, match=reason):
        check_json_size(body, LIMIT)


@given(JSON_VALUES)
def test_ordinary_json_is_accepted(value: object) -> None:
    check_json_size(json.dumps(value).encode(), LIMIT)
    check_json_size(json.dumps(value, ensure_ascii=False).encode(), LIMIT)
