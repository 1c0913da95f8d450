"""Plain messages for pydantic validation errors: where, the value, and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queenright.instrumentation.counts import format_count
from queenright.instrumentation.redaction import redact

_MESSAGE_LIMIT: Final = 4_000
_VALUE_LIMIT: Final = 80
_REPR_LIMIT: Final = 4_000
"""A longer value is described by its length: masking its secrets would take long."""

_MESSAGES: Final[Mapping[str, str]] = {
    "bool_parsing": "it must be true or false",
    "bool_type": "it must be true or false",
    "bytes_type": "it must be text",
    "date_from_datetime_parsing": "it must be a date, such as 2026-01-31",
    "date_parsing": "it must be a date, such as 2026-01-31",
    "date_type": "it must be a date, such as 2026-01-31",
    "datetime_from_date_parsing": "it must be a time, such as 2026-01-31T12:00:00Z",
    "datetime_object_invalid": "it must be a time, such as 2026-01-31T12:00:00Z",
    "datetime_parsing": "it must be a time, such as 2026-01-31T12:00:00Z",
    "datetime_type": "it must be a time, such as 2026-01-31T12:00:00Z",
    "decimal_parsing": "it must be a number",
    "decimal_type": "it must be a number",
    "dict_type": "it must be an object",
    "enum": "it must be {expected}",
    "extra_forbidden": "no such field",
    "finite_number": "it must be a finite number",
    "float_parsing": "it must be a number",
    "float_type": "it must be a number",
    "frozen_set_type": "it must be a list",
    "greater_than": "it must be greater than {gt}",
    "greater_than_equal": "it must be at least {ge}",
    "int_from_float": "it must be a whole number",
    "int_parsing": "it must be a whole number",
    "int_parsing_size": "it must be a smaller number",
    "int_type": "it must be a whole number",
    "invalid_key": "its names must be text",
    "is_instance_of": "it must be a {class}",
    "json_invalid": "it is not valid JSON: {error}",
    "json_type": "it must be JSON",
    "less_than": "it must be less than {lt}",
    "less_than_equal": "it must be at most {le}",
    "list_type": "it must be a list",
    "literal_error": "it must be {expected}",
    "mapping_type": "it must be an object",
    "missing": "it is required",
    "missing_argument": "it is required",
    "missing_keyword_only_argument": "it is required",
    "model_attributes_type": "it must be an object",
    "model_type": "it must be an object",
    "none_required": "it must be null",
    "path_type": "it must be a path",
    "recursion_depth_exceeded": "it is nested too deeply",
    "recursion_loop": "it contains itself",
    "set_item_not_hashable": "its items must be single values",
    "set_type": "it must be a list",
    "string_pattern_mismatch": "it must match the pattern {pattern}",
    "string_type": "it must be text",
    "string_unicode": "it must be valid Unicode text",
    "timezone_aware": "it must have a time zone, such as 2026-01-31T12:00:00Z",
    "tuple_type": "it must be a list",
    "unexpected_keyword_argument": "no such field",
    "union_tag_invalid": "its {discriminator} must be one of {expected_tags}",
    "union_tag_not_found": "its {discriminator} is required",
    "url_parsing": "it must be a URL, such as http://127.0.0.1:9093",
    "url_scheme": "it must be a URL that begins with {expected_schemes}",
    "url_type": "it must be a URL, such as http://127.0.0.1:9093",
    "uuid_parsing": "it must be a UUID",
    "uuid_type": "it must be a UUID",
}
_NUMBER_TYPES: Final = frozenset(
    {"finite_number", "greater_than", "greater_than_equal", "less_than", "less_than_equal"}
)
_LIST_TYPES: Final = frozenset({"frozen_set_type", "list_type", "set_type", "tuple_type"})
_MEMBER_OF_UNION: Final = re.compile(
    r"(bool|bytes|float|int|none|str|nullable|constrained-\w+)|.*\[.*", re.DOTALL
)
"""Parts that pydantic adds to a path: which type of a union was tried, and `[key]`."""
_UNSHOWN_VALUE: Final = frozenset({"missing", "string_too_long"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of an input."""

    path: tuple[int | str, ...]
    """Empty for the input as a whole."""
    kind: str
    """Pydantic's type of the error."""
    message: str
    value: str
    """The refused value, shortened and with secrets masked; empty if it must not be shown."""

    @property
    def where(self) -> str:
        """The path with dots."""
        return ".".join(map(str, self.path))

    def describe(self, subject: str = "the body") -> str:
        """Return the path, the value and what is allowed, on one line; ``subject`` names the input."""
        value = f"{self.value} is refused: " if self.value and self.kind != "extra_forbidden" else ""
        return f"{self.where or subject}: {value}{self.message}"


def read_faults(errors: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """
    Return the faults that pydantic lists, without its own terms.

    The types of a union make one fault: their messages at the same path are joined. A fault of a whole value
    is left out if there are faults within it.
    """
    faults: dict[tuple[tuple[int | str, ...], bool], Fault] = {}
    for error in errors:
        path = tuple(part for part in error["loc"] if not _is_member_of_union(part))
        message, is_name = format_fault(error), error["loc"][-1:] == ("[key]",)
        earlier_fault = faults.get((path, is_name))
        if earlier_fault is None:
            fault = Fault(path=path, kind=error["type"], message=message, value=_show_value(error))
            faults[path, is_name] = fault
        elif message not in earlier_fault.message:
            alternatives = f"{earlier_fault.message}, or {message.removeprefix('it must be ')}"
            faults[path, is_name] = replace(earlier_fault, message=alternatives)
    paths = {path for path, _ in faults}
    return [
        fault
        for (path, _), fault in faults.items()
        if not any(len(other) > len(path) and other[: len(path)] == path for other in paths)
    ]


def describe_faults(errors: Sequence[Mapping[str, Any]], subject: str = "the body", limit: int = 5) -> str:
    """Return the first faults on one line."""
    return "; ".join(fault.describe(subject) for fault in read_faults(errors)[:limit])


def format_fault(error: Mapping[str, Any]) -> str:
    """Return what is allowed according to pydantic's error, in our terms."""
    kind, context = error["type"], error.get("ctx") or {}
    if kind in {"value_error", "assertion_error"}:
        message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    elif kind in {"string_too_long", "string_too_short", "too_long", "too_short"} and context:
        message = _describe_length(kind, context, error.get("input"))
    elif isinstance(value := error.get("input"), float) and math.isnan(value) and kind in _NUMBER_TYPES:
        message = "it must be a number"
    elif kind == "string_pattern_mismatch" and context.get("pattern") == r"\S":
        message = "it must not be empty"
    elif kind in _LIST_TYPES and isinstance(value, (str, int, float)):
        message = "it must be a list, such as [a, b]"
    elif kind in _MESSAGES:
        try:
            message = _MESSAGES[kind].format_map(
                {name: _format_number(bound) for name, bound in context.items()}
            )
        except KeyError:  # The errors were read without their context.
            message = _rephrase(str(error["msg"]))
    else:
        message = _rephrase(str(error["msg"]))
    return message[:_MESSAGE_LIMIT]


def _format_number(bound: object) -> object:
    """Return a number with thousands separators; a whole number has no fraction."""
    if isinstance(bound, float) and bound.is_integer():
        bound = int(bound)
    return f"{bound:,}" if isinstance(bound, (int, float)) else bound


def _rephrase(message: str) -> str:
    return message.replace("Input should", "it must", 1)


def _is_member_of_union(part: int | str) -> bool:
    return isinstance(part, str) and _MEMBER_OF_UNION.fullmatch(part) is not None


def _describe_length(kind: str, context: Mapping[str, Any], value: object) -> str:
    """Return the message for a text or list that is too long or too short."""
    is_maximum = kind.endswith("too_long")
    bound = context["max_length" if is_maximum else "min_length"]
    if bound == 1 and not is_maximum:
        return "it must not be empty"
    unit = "character" if kind.startswith("string") else "item"
    actual = context.get("actual_length", len(value) if isinstance(value, str) else None)
    count = format_count(bound, unit)
    actual_text = "" if actual is None else f", not {actual:,}"
    return f"it must have at {'most' if is_maximum else 'least'} {count}{actual_text}"


def _show_value(error: Mapping[str, Any]) -> str:
    if error["type"] in _UNSHOWN_VALUE or "input" not in error:
        return ""
    return shorten_value(error["input"])


def shorten_value(value: object) -> str:
    """Return the beginning of a value as Python writes it, with secrets masked."""
    text = repr(value)
    if len(text) > _REPR_LIMIT:
        return f"a value of {len(text):,} characters"
    excerpt = redact(text, _REPR_LIMIT)
    return excerpt if len(excerpt) <= _VALUE_LIMIT else f"{excerpt[: _VALUE_LIMIT - 1]}…"
