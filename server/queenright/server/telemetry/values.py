"""Reading what came over the wire: attribute values, times and ids, each bounded and never raising."""

from __future__ import annotations

import math
import os
import re
import time
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from queenright.instrumentation.fingerprint import fingerprint
from queenright.instrumentation.identity import NAME_LIMIT, clean_name
from queenright.instrumentation.names import CUT_OFF
from queenright.instrumentation.redaction import mask_name
from queenright.runtime.events import AgentEvent
from queenright.server.telemetry.payload import unwrap_payload

FUTURE_LIMIT: Final = 86_400.0
"""A time further ahead of our clock than this, in seconds, is no time."""

NO_SPAN: Final = bytes(8)

MAX_DURATION: Final = 366 * 86_400.0
MAX_COUNT: Final = 10**12

MAX_ATTRIBUTES: Final = 1_024
"""Attributes of one span, record, resource or exception; SDKs send at most 128 by themselves."""

_MAX_DEPTH = 16
_MAX_VALUES = 5_000
"""Values of one attribute that are looked at one by one."""
_MAX_NAME = 16_384
"""Characters of a name that are looked at; what is after them is part of its hash no more."""


def text_of(value: AnyValue | None) -> str:
    """Return a value as one clean line without secrets; "" if there is none."""
    if value is None:
        return ""
    text = value.string_value
    if text:
        # Nearly every text is clean; this way is taken six times a span.
        if len(text) <= NAME_LIMIT and text[0] != " " and text[-1] != " " and text.isprintable():
            return mask_name(text)
        return clean_name(text[:_MAX_NAME])
    plain = plain_of(value, 16)
    return "" if plain is None or plain == "" else clean_name(str(plain))


def folder_name(path: Any) -> str:
    """Return the last part of a path of any system; "" if it has none, or is no text."""
    return clean_name(re.split(r"[/\\]", path.rstrip("/\\"))[-1]) if isinstance(path, str) else ""


def is_cut(value: AnyValue) -> bool:
    """Say whether one of a model's finish reasons is that its answer met a length limit."""
    reasons = value.array_value.values if value.HasField("array_value") else (value,)
    return any(reason.string_value in CUT_OFF for reason in islice(reasons, MAX_ATTRIBUTES))


def count_of(value: AnyValue | None) -> int | None:
    """Return a value as a count (of tokens, say) of at least 0, or None if it is none."""
    if value is None:
        return None
    count = value.int_value
    if 0 < count <= MAX_COUNT:
        return count
    number = number_of(value)
    return None if number is None else int(number)


def number_of(value: AnyValue | None) -> float | None:
    """Return a value as a number of at least 0, or None if it is none; numbers written as text count."""
    if value is None:
        return None
    match value.WhichOneof("value"):
        case "int_value":
            number = float(value.int_value)
        case "double_value":
            number = value.double_value
        case "string_value":
            try:
                number = float(value.string_value[:32])
            except ValueError:
                return None
        case _:
            return None
    if not math.isfinite(number) or number < 0:
        return None
    return min(number, float(MAX_COUNT))


def moment_of(value: AnyValue | None, now: float) -> float | None:
    """Return a value as a time in seconds since the epoch, or None if there is none or it cannot be."""
    moment = number_of(value)
    return moment if moment and moment <= now + FUTURE_LIMIT else None


def is_true(value: AnyValue | None) -> bool:
    """Return whether a value says yes."""
    return value is not None and (value.bool_value or value.string_value.lower() == "true")


def plain_of(value: AnyValue, limit: int = _MAX_VALUES) -> Any:
    """
    Return a value as JSON types.

    What is nested deeper than anyone writes is cut off; lists and mappings after the first ``limit`` values
    are their hash.
    """
    return _plain(value, 0, [limit])


def _plain(value: AnyValue, depth: int, left: list[int]) -> Any:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "bool_value":
            return value.bool_value
        case "bytes_value":
            return value.bytes_value.hex()
        case "array_value" if depth < _MAX_DEPTH:
            if (items := value.array_value.values) and _spend(left, len(items)):
                return [_plain(item, depth + 1, left) for item in items]
            return _hash(value) if items else []
        case "kvlist_value" if depth < _MAX_DEPTH:
            if (pairs := value.kvlist_value.values) and _spend(left, len(pairs)):
                return {pair.key: _plain(pair.value, depth + 1, left) for pair in pairs}
            return _hash(value) if pairs else {}
    return None


def _spend(left: list[int], count: int) -> bool:
    left[0] -= count
    return left[0] >= 0


def _hash(value: AnyValue) -> str:
    return blake2b(value.SerializeToString(deterministic=True), digest_size=8).hexdigest()


_HIDDEN: Final = ("redacted", "hidden", "masked", "filtered", "omitted")
_PLACEHOLDERS: Final = frozenset(
    ("***", *(form.format(word) for word in _HIDDEN for form in ("{}", "__{}__", "[{}]", "<{}>")))
)
"""What libraries write where content is not to be recorded, in lower case."""
_LONGEST_PLACEHOLDER: Final = 16


def content_of(value: AnyValue | None) -> Any:
    """Return recorded arguments or results; None if none were recorded."""
    if value is None:
        return None
    plain = unwrap_payload(plain_of(value))
    if isinstance(plain, str) and len(plain) <= _LONGEST_PLACEHOLDER:
        text = plain.strip(" \"'").lower()
        if not text or text in _PLACEHOLDERS:
            return None
    return plain


NO_CONTENT: Final = fingerprint({})
"""Of an empty object: a call without arguments, or what a library writes where content is not recorded."""


def plain_text(value: Any) -> str:
    """Return a JSON value as text, bounded."""
    return str(value)[:100_000]


def tool_in(value: Any) -> str:
    """
    Return the name of a tool in a hook call, "unknown" if it says none.

    Raises:
        ValueError: It is no text.
    """
    if value is not None and not isinstance(value, str):
        raise ValueError(f"tool_name is no text but a {type(value).__name__}; send the name of the tool")
    return clean_name(plain_text(value or "")) or "unknown"


def id_in(value: Any) -> str:
    """Return a JSON value as an id; "" if it is no text."""
    return clean_name(value[:1_000]) if isinstance(value, str) else ""


def span_id_in(text: str) -> bytes:
    """Return the id of a span that is written in hexadecimal; b"" for what is none."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return b""
    return found if len(found) == 8 and found != NO_SPAN else b""


def number_in(value: Any) -> float:
    """Return a JSON value, or the text of one, as a number of at least 0; 0 if it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if 0 <= number < MAX_COUNT else 0.0


def count_in(value: Any) -> int:
    """Return a JSON value, or the text of one, as a count; 0 if it is none."""
    return int(number_in(value))


def seconds_of(nanoseconds: int, now: float) -> float:
    """Return a time in seconds since the epoch; ``now`` for none and for one that cannot be."""
    seconds = nanoseconds / 1e9
    return seconds if 0 < seconds <= now + FUTURE_LIMIT else now


def duration_of(start: int, end: int) -> float | None:
    """Return the seconds between two times in nanoseconds; None if one is missing or they are reversed."""
    if not start or end < start:
        return None
    seconds = (end - start) / 1e9
    return seconds if seconds <= MAX_DURATION else None


def number_events(events: list[AgentEvent]) -> None:
    """
    Give events their ids: UUIDv7 (RFC 9562 §6.2, method 1) that rise in the order of the list.

    The random part is drawn once for all of them, which costs a tenth of drawing it for each.
    """
    random = int.from_bytes(os.urandom(10), "big")
    stamp = f"{int(time.time() * 1000):012x}"
    prefix = f"{stamp[:8]}-{stamp[8:]}-7{random & 0xFFF:03x}-{0x8000 | (random >> 12 & 0x3FFF):04x}-"
    first = random >> 32 & 0x7FFFFFFFFFFF
    for index, event in enumerate(events, first):
        event.id = f"{prefix}{index:012x}"
