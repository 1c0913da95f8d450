"""OTLP over HTTP: bodies into messages and messages into bodies, in protobuf and JSON. No I/O."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final, TypeVar

import orjson
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # ships stubs without py.typed

from queenright.server.middleware.json_limits import (
    MAX_DEPTH,
    JsonFormatError,
    JsonSizeError,
    check_json_size,
    without_lone_surrogates,
)
from queenright.server.otlp.errors import (
    INVALID_ARGUMENT,
    RejectedRequestError,
    malformed_error,
    too_large_error,
    too_many_error,
)

M = TypeVar("M", bound=Message)

_ID_KEYS: Final = frozenset({"traceId", "trace_id", "spanId", "span_id", "parentSpanId", "parent_span_id"})
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}
_MAX_MEMBERS: Final = 1_000

CHUNK: Final = 256 * 1024
"""Bytes decompressed in one step."""

MAX_JSON: Final = 8 * 1024 * 1024
MAX_VALUES: Final = 200_000
"""Values in a JSON body: its brackets, commas and colons. The parser holds the interpreter for 25 ms."""


class MediaType(StrEnum):
    """The two encodings of OTLP over HTTP."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"

    @classmethod
    def from_header(cls, content_type: str) -> MediaType:
        """
        Read a ``Content-Type`` header.

        Raises:
            RejectedRequestError: It is neither of the two (415).
        """
        name = content_type.partition(";")[0].strip().lower()
        try:
            return cls(name)
        except ValueError:
            reason = f"content type {name[:100]!r} is not supported; send {cls.PROTOBUF} or {cls.JSON}"
            raise RejectedRequestError(415, INVALID_ARGUMENT, reason) from None


def decompress_chunks(body: bytes, content_encoding: str, limit: int) -> Iterator[bytes]:
    """
    Undo a ``Content-Encoding``, at most `CHUNK` bytes a step and never more than ``limit`` in all.

    Raises:
        RejectedRequestError: It is unknown (415), the body is broken (400), or longer than ``limit`` (413).
    """
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        yield body
        return
    bits = _WINDOW_BITS.get(name)
    if bits is None:
        reason = f"content encoding {name[:100]!r} is not supported; send gzip, deflate or none"
        raise RejectedRequestError(415, INVALID_ARGUMENT, reason, ((b"accept-encoding", b"gzip, deflate"),))
    left, members, at = limit, 0, 0
    stream = None
    pending = b""
    try:
        while pending or at < len(body):
            if not pending:
                # Not all of it at once: what one member leaves over is copied for the next.
                pending = body[at : at + CHUNK]
                at += CHUNK
            if stream is None:
                members += 1
                if members > _MAX_MEMBERS:
                    raise malformed_error(f"the body has more than {_MAX_MEMBERS} {name} streams")
                stream = zlib.decompressobj(bits)
            chunk = stream.decompress(pending, CHUNK)
            pending = stream.unconsumed_tail
            left -= len(chunk)
            if left < 0:
                raise too_large_error("the body, decompressed,", limit)
            if stream.eof:
                pending = stream.unused_data
                stream = None
            if chunk:
                yield chunk
        while stream is not None:
            # What was read and could not be given out yet, at most a part at a time.
            chunk = stream.decompress(b"", CHUNK)
            left -= len(chunk)
            if left < 0:
                raise too_large_error("the body, decompressed,", limit)
            if stream.eof:
                stream = None
            elif not chunk:
                raise malformed_error(f"the body ends before its {name} stream does")
            if chunk:
                yield chunk
    except zlib.error as error:
        raise malformed_error(f"the body is not valid {name}: {error}") from None


def check_json(body: bytes | bytearray) -> None:
    """
    Refuse JSON that would take long to parse or become much bigger than it is; bounded work, for a thread.

    Raises:
        RejectedRequestError: It is longer than `MAX_JSON` bytes, or holds more than `MAX_VALUES` values
            (413); or it is nested too deep or has a number that is too long (400).
    """
    if len(body) > MAX_JSON:
        raise too_large_error("the body, as JSON and decompressed,", MAX_JSON)
    try:
        check_json_size(body, MAX_VALUES)
    except JsonSizeError:
        raise too_many_error("values in JSON", MAX_VALUES) from None
    except JsonFormatError as error:
        raise malformed_error(str(error)) from None


def parse(body: bytes | bytearray, media_type: MediaType, make: Callable[[], M]) -> M:
    """
    Return the message that a body holds; an empty body is an empty message, unknown fields are ignored.

    Raises:
        RejectedRequestError: It holds no such message (400).
    """
    message = make()
    if not body:
        return message
    try:
        if media_type is MediaType.PROTOBUF:
            message.ParseFromString(bytes(body))
        else:
            parsed = _loads(body)
            if not isinstance(parsed, dict):
                raise malformed_error("the body must be a JSON object")
            json_format.ParseDict(_with_base64_ids(parsed, 0), message, ignore_unknown_fields=True)
    except (DecodeError, json_format.Error, orjson.JSONDecodeError) as error:
        raise malformed_error(
            f"the body is not a valid {message.DESCRIPTOR.name}: {str(error)[:300]}"
        ) from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # What the JSON parser lets through on values of the wrong kind.
        raise malformed_error(
            f"the body is not a valid {message.DESCRIPTOR.name}: {type(error).__name__}"
        ) from None
    return message


def _loads(body: bytes | bytearray) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return orjson.loads(without_lone_surrogates(body))


def render(message: Message, media_type: MediaType) -> bytes:
    """Return a message as a body."""
    if media_type is MediaType.PROTOBUF:
        return message.SerializeToString()
    return json_format.MessageToJson(message, indent=None).encode()


def render_status(code: int, reason: str, media_type: MediaType) -> bytes:
    """Return what went wrong as the ``google.rpc.Status`` that OTLP asks for."""
    return render(Status(code=code, message=reason), media_type)


def _with_base64_ids(value: Any, depth: int) -> Any:
    """Return OTLP's JSON as protobuf's, where trace and span ids are base64 instead of hexadecimal."""
    if depth > MAX_DEPTH:
        raise malformed_error(f"the body is nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [_with_base64_ids(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _base64_id(key, item) if key in _ID_KEYS else _with_base64_ids(item, depth + 1)
        for key, item in value.items()
    }


def _base64_id(key: str, value: Any) -> str:
    if value is None:
        return ""
    try:
        return base64.b64encode(binascii.unhexlify(value)).decode()
    except (ValueError, TypeError):
        raise malformed_error(f"{key} {str(value)[:64]!r} is not hexadecimal") from None
