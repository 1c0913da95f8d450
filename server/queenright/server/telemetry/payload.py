"""Remove the envelopes that libraries add around recorded arguments and results."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, Final

_MAX_DEPTH: Final = 12
_MAX_JSON_LENGTH: Final = 65_536
_MAX_LITERAL_LENGTH: Final = 8_192

_PAYLOAD_KEYS: Final = (
    "inputs",
    "input",
    "arguments",
    "args",
    "input_str",
    "outputs",
    "output",
    "result",
    "response",
    "content",
    "parts",
    "messages",
    "message",
    "text",
    "kwargs",
)
"""Keys of the payload in an envelope, outermost first."""

_ENVELOPE_MARKS: Final = frozenset(
    {
        "tool_call_id",
        "toolCallId",
        "tool_use_id",
        "toolUseId",
        "additional_kwargs",
        "response_metadata",
        "input_str",
        "isError",
        "lc",
        "langgraph_step",
    }
)
"""Keys that only envelopes have."""

_ENVELOPE_TYPES: Final = frozenset(
    {
        "constructor",
        "function_call",
        "function_call_output",
        "message",
        "text",
        "tool",
        "tool_call",
        "tool_call_response",
        "tool_result",
        "tool_use",
    }
)
_RUN_KEYS: Final = frozenset(
    {"callbacks", "color", "config", "metadata", "name", "parent_run_id", "run_id", "tags"}
)
"""Keys that LangChain adds next to a run's output, as ``kwargs``."""
_ENVELOPE_ROLES: Final = frozenset({"assistant", "function", "model", "tool", "user"})
_ENVELOPE_KEYS: Final = frozenset(
    {
        "annotations",
        "call_id",
        "finish_reason",
        "id",
        "is_error",
        "name",
        "role",
        "status",
        "type",
        *_PAYLOAD_KEYS,
    }
)
"""Keys of a typed envelope. A mapping with other keys contains arguments."""
_PRINTED_MESSAGE: Final = re.compile(
    r"content=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")(?: \w+=|\Z)", re.DOTALL
)
"""A message printed by Python."""


def unwrap_payload(value: Any) -> Any:
    """
    Return the arguments or the result of a tool call without library envelopes.

    A mapping with a single key such as "input" or "output" is an envelope. A mapping with more keys is an
    envelope only if a key, its type or its role shows it, because "id", "name" or "step" may be arguments.
    """
    for _ in range(_MAX_DEPTH):
        if isinstance(value, str):
            inner = _unwrap_text(value)
        elif isinstance(value, Mapping):
            inner = _unwrap_mapping(value)
        elif isinstance(value, list | tuple) and len(value) == 1 and _is_envelope(value[0]):
            inner = value[0]
        else:
            return value
        if inner is value:
            return value
        value = inner
    return value


def _unwrap_text(text: str) -> Any:
    stripped = text.strip()
    first, last = stripped[:1], stripped[-1:]
    if (first, last) in (("{", "}"), ("[", "]"), ('"', '"')) and len(stripped) <= _MAX_JSON_LENGTH:
        try:
            return json.loads(stripped)
        except (ValueError, RecursionError):
            pass
        if first != '"' and len(stripped) <= _MAX_LITERAL_LENGTH:
            return _parse_literal(stripped, text)
    elif stripped.startswith("content=") and (match := _PRINTED_MESSAGE.match(stripped)) is not None:
        return _parse_literal(match[1], text)
    return text


def _parse_literal(source: str, default: str) -> Any:
    """Parse a Python literal, as written by ``str()``. Return ``default`` for other text."""
    try:
        return ast.literal_eval(source)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return default


def _unwrap_mapping(value: Mapping[Any, Any]) -> Any:
    if _is_envelope(value):
        for key in _PAYLOAD_KEYS:
            if key in value and (value[key] not in (None, "", [], {}) or len(value) == 1):
                return value[key]
    return value


def _is_envelope(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    if len(value) == 1:
        return next(iter(value)) in _PAYLOAD_KEYS
    if not _ENVELOPE_MARKS.isdisjoint(value):
        return True
    if len(value) == 2 and isinstance(run := value.get("kwargs"), Mapping):
        return bool(run) and _RUN_KEYS.issuperset(run)
    is_typed = _is_one_of(value.get("type"), _ENVELOPE_TYPES) or _is_one_of(
        value.get("role"), _ENVELOPE_ROLES
    )
    return is_typed and _ENVELOPE_KEYS.issuperset(value)


def _is_one_of(value: Any, names: frozenset[str]) -> bool:
    return isinstance(value, str) and value in names
