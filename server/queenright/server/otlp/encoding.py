"""OTLP over HTTP: bodies into messages and messages into bodies, in protobuf and JSON. No I/O."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, TypeVar

import orjson
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # ships stubs without py.typed

from queenright.server.otlp.errors import INVALID_ARGUMENT, Refused, malformed, too_large

M = TypeVar("M", bound=Message)

_ID_KEYS: Final = frozenset({"traceId", "trace_id", "spanId", "span_id", "parentSpanId", "parent_span_id"})
_MAX_DEPTH: Final = 64
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}


class MediaType(StrEnum):
    """The two encodings of OTLP over HTTP."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"

    @classmethod
    def of(cls, content_type: str) -> MediaType:
        """
        Read a ``Content-Type`` header.

        Raises:
            Refused: It is neither of the two (415).
        """
        name = content_type.partition(";")[0].strip().lower()
        try:
            return cls(name)
        except ValueError:
            reason = f"content type {name[:100]!r} is not known here; send {cls.PROTOBUF} or {cls.JSON}"
            raise Refused(415, INVALID_ARGUMENT, reason) from None


def inflate(body: bytes, content_encoding: str, limit: int) -> bytes:
    """
    Undo a ``Content-Encoding``, never making more than ``limit`` bytes.

    Raises:
        Refused: It is unknown (415), the body is broken (400), or longer than ``limit`` (413).
    """
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return body
    bits = _WINDOW_BITS.get(name)
    if bits is None:
        reason = f"content encoding {name[:100]!r} is not known here; send gzip, deflate or none"
        raise Refused(415, INVALID_ARGUMENT, reason, ((b"accept-encoding", b"gzip, deflate"),))
    parts: list[bytes] = []
    left = limit
    try:
        while body:
            stream = zlib.decompressobj(bits)
            part = stream.decompress(body, left + 1)
            left -= len(part)
            if left < 0:
                raise too_large("the body, decompressed,", limit)
            if not stream.eof:
                raise malformed(f"the body ends in the middle of its {name} stream")
            parts.append(part)
            body = stream.unused_data
    except zlib.error as error:
        raise malformed(f"the body is not {name}: {error}") from None
    return b"".join(parts)


def parse(body: bytes, media_type: MediaType, make: Callable[[], M]) -> M:
    """
    Return the message that a body holds; an empty body is an empty message, unknown fields are ignored.

    Raises:
        Refused: It holds no such message (400).
    """
    message = make()
    if not body:
        return message
    try:
        if media_type is MediaType.PROTOBUF:
            message.ParseFromString(body)
        else:
            parsed = orjson.loads(body)
            if not isinstance(parsed, dict):
                raise malformed("the body is JSON, but no object")
            json_format.ParseDict(_with_base64_ids(parsed, 0), message, ignore_unknown_fields=True)
    except (DecodeError, json_format.Error, orjson.JSONDecodeError) as error:
        raise malformed(f"the body is no {message.DESCRIPTOR.name}: {str(error)[:300]}") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # What the JSON parser lets through on values of the wrong kind.
        raise malformed(f"the body is no {message.DESCRIPTOR.name}: {type(error).__name__}") from None
    return message


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
    if depth > _MAX_DEPTH:
        raise malformed(f"the body is nested more than {_MAX_DEPTH} deep")
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
        raise malformed(f"{key} {str(value)[:64]!r} is not hexadecimal") from None
