"""Read untrusted attribute values, times and ids. Results are bounded; invalid input does not raise."""

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

MAX_FUTURE_SECONDS: Final = 86_400.0
"""Seconds by which a time may be ahead of the service's clock. Later times are invalid."""

MILLISECOND: Final = 1_000_000
"""Nanoseconds in a millisecond."""

NO_SPAN: Final = bytes(8)

MAX_DURATION: Final = 366 * 86_400.0
MAX_COUNT: Final = 10**12

MAX_ATTRIBUTES: Final = 1_024
"""Maximum attributes of a span, record, resource or exception. By default, SDKs send at most 128."""

_MAX_DEPTH = 16
_MAX_VALUES = 5_000
"""Maximum nested values of an attribute that are read."""
_MAX_NAME_LENGTH = 16_384
"""Maximum characters of a name to read. Further characters do not affect its hash."""


def read_text(value: AnyValue | None) -> str:
    """Return a value as a clean single line with secrets masked, or ""."""
    if value is None:
        return ""
    text = value.string_value
    if text:
        # Fast path: this runs six times per span, and nearly every text is clean.
        if len(text) <= NAME_LIMIT and "." < text[0] < "\x7f" and text[-1] != " " and text.isprintable():
            return mask_name(text)
        return clean_name(text[:_MAX_NAME_LENGTH])
    plain = to_json_value(value, 16)
    return "" if plain is None or plain == "" else clean_name(str(plain))


def get_folder_name(path: Any) -> str:
    """Return the last part of a POSIX or Windows path; "" if it has none, or is not a string."""
    return clean_name(re.split(r"[/\\]", path.rstrip("/\\"))[-1]) if isinstance(path, str) else ""


def is_truncated(value: AnyValue) -> bool:
    """Return whether a finish reason says that the response reached a length limit."""
    reasons = value.array_value.values if value.HasField("array_value") else (value,)
    return any(reason.string_value in CUT_OFF for reason in islice(reasons, MAX_ATTRIBUTES))


def read_count(value: AnyValue | None) -> int | None:
    """Return a value as a count of at least 0, or None if it is not a number."""
    if value is None:
        return None
    count = value.int_value
    if 0 < count <= MAX_COUNT:
        return count
    number = read_number(value)
    return None if number is None else int(number)


def read_number(value: AnyValue | None) -> float | None:
    """Return a value as a number of at least 0, or None. Numeric strings are accepted."""
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


def read_timestamp(value: AnyValue | None, now: float) -> float | None:
    """Return a value as a time in seconds since the epoch, or None if it is missing or in the future."""
    timestamp = read_number(value)
    return timestamp if timestamp and timestamp <= now + MAX_FUTURE_SECONDS else None


def is_true(value: AnyValue | None) -> bool:
    """Return whether a value is true or "true"."""
    return value is not None and (value.bool_value or value.string_value.lower() == "true")


def to_json_value(value: AnyValue, limit: int = _MAX_VALUES) -> Any:
    """
    Return a value as JSON types.

    Deeply nested values are dropped. After ``limit`` values, lists and mappings are replaced by their hash.
    """
    return _to_json(value, 0, [limit])


def _to_json(value: AnyValue, depth: int, budget: list[int]) -> Any:
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
            if (items := value.array_value.values) and _spend_budget(budget, len(items)):
                return [_to_json(item, depth + 1, budget) for item in items]
            return _hash_value(value) if items else []
        case "kvlist_value" if depth < _MAX_DEPTH:
            if (pairs := value.kvlist_value.values) and _spend_budget(budget, len(pairs)):
                return {pair.key: _to_json(pair.value, depth + 1, budget) for pair in pairs}
            return _hash_value(value) if pairs else {}
    return None


def _spend_budget(budget: list[int], count: int) -> bool:
    budget[0] -= count
    return budget[0] >= 0


def _hash_value(value: AnyValue) -> str:
    return blake2b(value.SerializeToString(deterministic=True), digest_size=8).hexdigest()


_HIDDEN_WORDS: Final = ("redacted", "hidden", "masked", "filtered", "omitted")
_PLACEHOLDERS: Final = frozenset(
    ("***", *(form.format(word) for word in _HIDDEN_WORDS for form in ("{}", "__{}__", "[{}]", "<{}>")))
)
"""Texts that libraries write in place of hidden content, in lower case."""
_MAX_PLACEHOLDER_LENGTH: Final = 16


def read_content(value: AnyValue | None) -> Any:
    """Return recorded arguments or results without envelopes; None if they were not recorded."""
    if value is None:
        return None
    plain = unwrap_payload(to_json_value(value))
    if isinstance(plain, str) and len(plain) <= _MAX_PLACEHOLDER_LENGTH:
        text = plain.strip(" \"'").lower()
        if not text or text in _PLACEHOLDERS:
            return None
    return plain


NO_CONTENT: Final = fingerprint({})
"""The hash of an empty object, which means no arguments, or content that a library does not record."""


def to_text(value: Any) -> str:
    """Return a JSON value as text of bounded length."""
    return str(value)[:100_000]


def read_tool_name(value: Any) -> str:
    """
    Return the tool name in a hook call, or "unknown".

    Raises:
        ValueError: The value is not a string.
    """
    if value is not None and not isinstance(value, str):
        raise ValueError(f"tool_name must be a string, not {type(value).__name__}")
    return clean_name(to_text(value or "")) or "unknown"


def clean_id(value: Any) -> str:
    """Return a JSON value as an id; "" if it is not a string."""
    return clean_name(value[:1_000]) if isinstance(value, str) else ""


def parse_span_id(text: str) -> bytes:
    """Parse a hexadecimal span id; return b"" if it is not valid."""
    try:
        span_id = bytes.fromhex(text)
    except ValueError:
        return b""
    return span_id if len(span_id) == 8 and span_id != NO_SPAN else b""


def parse_number(value: Any) -> float:
    """Return a JSON number or numeric string as a number of at least 0; 0 if it is invalid."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if 0 <= number < MAX_COUNT else 0.0


def parse_count(value: Any) -> int:
    """Return a JSON number or numeric string as a count; 0 if it is invalid."""
    return int(parse_number(value))


def to_seconds(nanoseconds: int, now: float) -> float:
    """Convert nanoseconds to seconds since the epoch; ``now`` if the time is missing or in the future."""
    seconds = nanoseconds / 1e9
    return seconds if 0 < seconds <= now + MAX_FUTURE_SECONDS else now


def compute_duration(start: int, end: int) -> float | None:
    """Return the seconds between two times in nanoseconds; None if one is missing or they are reversed."""
    if not start or end < start:
        return None
    seconds = (end - start) / 1e9
    return seconds if seconds <= MAX_DURATION else None


def number_events(events: list[AgentEvent]) -> None:
    """
    Assign ids to events: UUIDv7 (RFC 9562 §6.2, method 1), ascending in list order.

    The random part is drawn once for all events, which costs a tenth of a draw per event.
    """
    random = int.from_bytes(os.urandom(10), "big")
    stamp = f"{int(time.time() * 1000):012x}"
    prefix = f"{stamp[:8]}-{stamp[8:]}-7{random & 0xFFF:03x}-{0x8000 | (random >> 12 & 0x3FFF):04x}-"
    first = random >> 32 & 0x7FFFFFFFFFFF
    for index, event in enumerate(events, first):
        event.id = f"{prefix}{index:012x}"
