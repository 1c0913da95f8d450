"""
Check and split large OTLP protobuf bodies before they are parsed, without I/O.

Protobuf's parser is C code that holds the GIL for the whole input, and a message of two bytes costs as much
as one of two hundred. It therefore gets at most `MAX_PIECE` unchecked bytes at a time. A longer body is split
at its resources, scopes, and their spans, records or metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from queenright.server.otlp.errors import (
    RejectedRequestError,
    make_malformed_error,
    make_too_large_error,
    make_too_many_error,
)

MAX_PIECE: Final = 256 * 1024
"""Maximum bytes to parse at once. This takes 4 ms in the worst case, which is only empty messages."""

MAX_GROUPS: Final = 10_000
"""Maximum resources and scopes of a request."""

MAX_ITEMS: Final = 200_000
"""Maximum spans, log records or metrics of a request."""

MAX_ITEM: Final = 4 * 1024 * 1024
"""Maximum bytes of one span, log record or metric."""

MAX_FIELDS: Final = 20_000
"""Maximum fields, including nested ones, of a span, log record or metric that is longer than a piece."""

MAX_SHARED: Final = 64 * 1024
"""Maximum bytes of a resource or scope that is repeated in several pieces."""

_CHILD_FIELDS: Final = (1, 2, 2)
"""Field numbers of the resources in a request, scopes in a resource, and items in a scope."""
_ITEM_LEVEL: Final = 2
_MAX_DEPTH: Final = 100

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def split_request(body: bytes | bytearray, request: Callable[[], Message]) -> list[bytes]:
    """
    Split a request into requests of at most `MAX_PIECE` bytes. A longer item gets its own request.

    Each request repeats the resource and scope of its items. The limits of this module bound the work.

    Args:
        body: A request to export spans, log records or metrics.
        request: Creates an empty request of this kind.

    Raises:
        RejectedRequestError: The body is not a request of this kind (400), or has too many or too long
            messages (413).
    """
    message: Any = request().DESCRIPTOR
    for number in _CHILD_FIELDS:
        message = message.fields_by_number[number].message_type
    return [bytes(piece) for piece in _Splitter(body, message).split(0, len(body), 0)]


def iter_fields(body: bytes | bytearray, at: int, end: int) -> Iterator[tuple[int, int, int, int, bool]]:
    """
    Yield each field's number, the offsets of its start, value and end, and whether it has a length.

    Raises:
        RejectedRequestError: The body is not a valid protobuf message (400).
    """
    while at < end:
        begin = at
        tag, at = _read_varint(body, at, end)
        wire = tag & 7
        value = at
        if wire == _LENGTH:
            length, value = _read_varint(body, at, end)
            at = value + length
        elif wire == _VARINT:
            _, at = _read_varint(body, at, end)
        elif wire == _FIXED64:
            at += 8
        elif wire == _FIXED32:
            at += 4
        else:
            raise make_malformed_error(f"the body has a field of wire type {wire}, which OTLP does not use")
        if at > end or not tag >> 3:
            raise _make_truncated_error()
        yield tag >> 3, begin, value, at, wire == _LENGTH


def _read_varint(body: bytes | bytearray, at: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while at < end and shift < 70:
        byte = body[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
    raise _make_truncated_error()


def _make_truncated_error() -> RejectedRequestError:
    return make_malformed_error("the body is not a valid protobuf message: a field is truncated or damaged")


class _Splitter:
    """Splits a body, and counts its groups and items."""

    def __init__(self, body: bytes | bytearray, item: Descriptor) -> None:
        self._body = body
        self._item = item
        self._groups = 0
        self._items = 0

    def split(self, at: int, end: int, level: int) -> Iterator[bytearray]:
        """Yield the message between two offsets in pieces, each with the fields that its children share."""
        body = self._body
        shared_fields = bytearray()
        children: list[tuple[int, int, int]] = []
        for number, begin, value, stop, has_length in iter_fields(body, at, end):
            if number == _CHILD_FIELDS[level] and has_length:
                self._count_child(level)
                children.append((begin, value, stop))
            else:
                shared_fields += body[begin:stop]
                if len(shared_fields) > MAX_SHARED:
                    raise make_too_large_error("a resource or scope", MAX_SHARED)
        piece = bytearray()
        for begin, value, stop in children:
            if piece and len(piece) + stop - begin > MAX_PIECE:
                yield shared_fields + piece
                piece = bytearray()
            if stop - begin <= MAX_PIECE:
                piece += body[begin:stop]
            elif level == _ITEM_LEVEL:
                self._check_item(value, stop)
                piece += body[begin:stop]
            else:
                for part in self.split(value, stop, level + 1):
                    yield shared_fields + encode_field_header(_CHILD_FIELDS[level], len(part)) + part
        if piece or not children:
            yield shared_fields + piece

    def _count_child(self, level: int) -> None:
        if level == _ITEM_LEVEL:
            self._items += 1
            if self._items > MAX_ITEMS:
                raise make_too_many_error("spans, records or metrics", MAX_ITEMS)
        else:
            self._groups += 1
            if self._groups > MAX_GROUPS:
                raise make_too_many_error("resources and scopes", MAX_GROUPS)

    def _check_item(self, at: int, end: int) -> None:
        """Reject an item that has too many fields, which would be slow to parse."""
        if end - at > MAX_ITEM:
            raise make_too_large_error("a span, record or metric", MAX_ITEM)
        remaining_fields = MAX_FIELDS
        pending_messages = [(at, end, self._item, 0)]
        while pending_messages:
            at, end, message, depth = pending_messages.pop()
            if depth > _MAX_DEPTH:
                raise make_malformed_error(f"the body is nested more than {_MAX_DEPTH} levels deep")
            nested_messages = _map_nested_messages(message)
            for number, _, value, stop, has_length in iter_fields(self._body, at, end):
                remaining_fields -= 1
                if remaining_fields < 0:
                    raise make_too_many_error("fields in one span, record or metric", MAX_FIELDS)
                if has_length and number in nested_messages:
                    pending_messages.append((value, stop, nested_messages[number], depth + 1))


@cache
def _map_nested_messages(message: Descriptor) -> dict[int, Descriptor]:
    return {f.number: f.message_type for f in message.fields if f.message_type is not None}


def encode_field_header(number: int, length: int) -> bytes:
    """Encode the tag and length of a length-delimited field."""
    header = bytearray((number << 3 | _LENGTH,))
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    header.append(length)
    return bytes(header)
