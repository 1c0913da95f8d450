"""Reading what came over the wire: attribute values, times and ids, each bounded and never raising."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from queenright.instrumentation.fingerprint import fingerprint
from queenright.instrumentation.identity import NAME_LIMIT, clean_name
from queenright.runtime.events import AgentEvent
from queenright.server.otlp.mapping import LOOKUP

FUTURE_LIMIT: Final = 86_400.0
"""A time further ahead of our clock than this, in seconds, is no time."""

MAX_DURATION: Final = 366 * 86_400.0
MAX_COUNT: Final = 10**12

_MAX_DEPTH = 16

Fields = dict[str, AnyValue]


def fields_of(attributes: Iterable[KeyValue]) -> Fields:
    """Return the attributes that mean something to us, by our name for them; the current spelling wins."""
    found: Fields = {}
    lookup = LOOKUP.get
    for attribute in attributes:
        entry = lookup(attribute.key)
        if entry is not None:
            field, current = entry
            if current or field not in found:
                found[field] = attribute.value
    return found


def text_of(value: AnyValue | None) -> str:
    """Return a value as one clean line; "" if there is none."""
    if value is None:
        return ""
    text = value.string_value
    if text:
        # Nearly every text is clean; this way is taken six times a span.
        if len(text) <= NAME_LIMIT and text[0] != " " and text[-1] != " " and text.isprintable():
            return text
        return clean_name(text)
    plain = plain_of(value)
    return "" if plain is None or plain == "" else clean_name(str(plain))


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


def plain_of(value: AnyValue, depth: int = 0) -> Any:
    """Return a value as JSON types; what is nested deeper than anyone writes is cut off."""
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
            return [plain_of(item, depth + 1) for item in value.array_value.values]
        case "kvlist_value" if depth < _MAX_DEPTH:
            return {item.key: plain_of(item.value, depth + 1) for item in value.kvlist_value.values}
    return None


def fingerprint_of(value: AnyValue | None) -> str | None:
    """Return the fingerprint of recorded arguments or results; None if none were recorded."""
    return None if value is None else fingerprint(plain_of(value))


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
