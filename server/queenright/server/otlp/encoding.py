"""Parse and render OTLP messages in protobuf and JSON, without I/O."""

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

from queenright.server.http.json_limits import (
    MAX_DEPTH,
    JsonFormatError,
    JsonSizeError,
    check_json_size,
    replace_lone_surrogates,
)
from queenright.server.otlp.errors import (
    INVALID_ARGUMENT,
    RejectedRequestError,
    make_malformed_error,
    make_too_large_error,
    make_too_many_error,
)

M = TypeVar("M", bound=Message)

_ID_KEYS: Final = frozenset({"traceId", "trace_id", "spanId", "span_id", "parentSpanId", "parent_span_id"})
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}
_MAX_MEMBERS: Final = 1_000

CHUNK_BYTES: Final = 256 * 1024
"""Maximum bytes to decompress in one step."""

MAX_JSON: Final = 8 * 1024 * 1024
MAX_VALUES: Final = 200_000
"""Maximum brackets, commas and colons in a JSON body. Parsing this many holds the GIL for 25 ms."""


class MediaType(StrEnum):
    """The two encodings of OTLP over HTTP."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"

    @classmethod
    def from_header(cls, content_type: str) -> MediaType:
        """
        Parse a ``Content-Type`` header.

        Raises:
            RejectedRequestError: The media type is not supported (415).
        """
        name = content_type.partition(";")[0].strip().lower()
        try:
            return cls(name)
        except ValueError:
            reason = f"content type {name[:100]!r} is not supported; send {cls.PROTOBUF} or {cls.JSON}"
            raise RejectedRequestError(415, INVALID_ARGUMENT, reason) from None


def decompress_chunks(body: bytes, content_encoding: str, limit: int) -> Iterator[bytes]:
    """
    Decompress a body in chunks of at most `CHUNK_BYTES` bytes, up to ``limit`` bytes in total.

    Raises:
        RejectedRequestError: The encoding is unknown (415), or the body is damaged (400) or too long (413).
    """
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        yield body
        return
    bits = _WINDOW_BITS.get(name)
    if bits is None:
        reason = f"content encoding {name[:100]!r} is not supported; send gzip, deflate or none"
        raise RejectedRequestError(415, INVALID_ARGUMENT, reason, ((b"accept-encoding", b"gzip, deflate"),))
    remaining, stream_count, offset = limit, 0, 0
    stream = None
    pending = b""
    try:
        while pending or offset < len(body):
            if not pending:
                # Read in chunks, because the input after each compressed stream is copied for the next.
                pending = body[offset : offset + CHUNK_BYTES]
                offset += CHUNK_BYTES
            if stream is None:
                stream_count += 1
                if stream_count > _MAX_MEMBERS:
                    raise make_malformed_error(f"the body has more than {_MAX_MEMBERS} {name} streams")
                stream = zlib.decompressobj(bits)
            chunk = stream.decompress(pending, CHUNK_BYTES)
            pending = stream.unconsumed_tail
            remaining -= len(chunk)
            if remaining < 0:
                raise make_too_large_error("the body, decompressed,", limit)
            if stream.eof:
                pending = stream.unused_data
                stream = None
            if chunk:
                yield chunk
        while stream is not None:
            # Read output that is still buffered, one chunk at a time.
            chunk = stream.decompress(b"", CHUNK_BYTES)
            remaining -= len(chunk)
            if remaining < 0:
                raise make_too_large_error("the body, decompressed,", limit)
            if stream.eof:
                stream = None
            elif not chunk:
                raise make_malformed_error(f"the body ends before its {name} stream does")
            if chunk:
                yield chunk
    except zlib.error as error:
        raise make_malformed_error(f"the body is not valid {name}: {error}") from None


def check_json(body: bytes | bytearray) -> None:
    """
    Reject JSON that is slow to parse or expands too much. The work is bounded. Call this in a thread.

    Raises:
        RejectedRequestError: The body is longer than `MAX_JSON` bytes or has more than `MAX_VALUES` values
            (413), or is nested too deeply or has too long a number (400).
    """
    if len(body) > MAX_JSON:
        raise make_too_large_error("the body, as JSON and decompressed,", MAX_JSON)
    try:
        check_json_size(body, MAX_VALUES)
    except JsonSizeError:
        raise make_too_many_error("values in JSON", MAX_VALUES) from None
    except JsonFormatError as error:
        raise make_malformed_error(str(error)) from None


def parse_message(body: bytes | bytearray, media_type: MediaType, make: Callable[[], M]) -> M:
    """
    Parse a body. An empty body becomes an empty message. Unknown fields are ignored.

    Raises:
        RejectedRequestError: The body is not a message of this type (400).
    """
    message = make()
    if not body:
        return message
    try:
        if media_type is MediaType.PROTOBUF:
            message.ParseFromString(bytes(body))
        else:
            value = _load_json(body)
            if not isinstance(value, dict):
                raise make_malformed_error("the body must be a JSON object")
            json_format.ParseDict(_convert_ids(value, 0), message, ignore_unknown_fields=True)
    except (DecodeError, json_format.Error, orjson.JSONDecodeError) as error:
        raise make_malformed_error(
            f"the body is not a valid {message.DESCRIPTOR.name}: {str(error)[:300]}"
        ) from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # json_format does not wrap these errors for values of the wrong type.
        raise make_malformed_error(
            f"the body is not a valid {message.DESCRIPTOR.name}: {type(error).__name__}"
        ) from None
    return message


def _load_json(body: bytes | bytearray) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return orjson.loads(replace_lone_surrogates(body))


def render_message(message: Message, media_type: MediaType) -> bytes:
    """Serialize a message in protobuf or JSON."""
    if media_type is MediaType.PROTOBUF:
        return message.SerializeToString()
    return json_format.MessageToJson(message, indent=None).encode()


def render_status(code: int, reason: str, media_type: MediaType) -> bytes:
    """Serialize an error as ``google.rpc.Status``, as OTLP requires."""
    return render_message(Status(code=code, message=reason), media_type)


def _convert_ids(value: Any, depth: int) -> Any:
    """Convert OTLP's JSON to protobuf's JSON, whose trace and span ids are base64 instead of hexadecimal."""
    if depth > MAX_DEPTH:
        raise make_malformed_error(f"the body is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, list):
        return [_convert_ids(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _encode_id(key, item) if key in _ID_KEYS else _convert_ids(item, depth + 1)
        for key, item in value.items()
    }


def _encode_id(key: str, value: Any) -> str:
    if value is None:
        return ""
    try:
        return base64.b64encode(binascii.unhexlify(value)).decode()
    except (ValueError, TypeError):
        raise make_malformed_error(f"{key} {str(value)[:64]!r} is not hexadecimal") from None
