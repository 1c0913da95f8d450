"""
Refuse gRPC and TLS on a port that serves HTTP/1.1.

Exporters whose default protocol is gRPC open an HTTP/2 connection. Each call gets the status UNIMPLEMENTED
with the setting to change, which the exporter prints.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from queenright.server.middleware.connections import Connections, GuardedProtocol
from queenright.server.otlp.errors import UNIMPLEMENTED

_log = logging.getLogger(__name__)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every HTTP/2 connection (RFC 9113 §3.4)."""
_TLS_HANDSHAKE: Final = b"\x16\x03"
GRPC_REASON: Final = (
    "this port accepts OTLP over HTTP, not gRPC; "
    "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf where the agent runs"
)

_HEADERS, _SETTINGS, _PING, _GOAWAY = 1, 4, 6, 7
_ACK: Final = 1
_END_STREAM_AND_HEADERS: Final = 5
_STATUS_200: Final = b"\x88"
_HTTP_1_1_REQUIRED: Final = 13
_MAX_FRAME: Final = 16_384
_MAX_REPLIES: Final = 256


class GrpcRefusal:
    """
    Refuses the calls of an HTTP/2 connection, without I/O: it takes received bytes and returns bytes to send.

    Args:
        reason: The setting that the client must change.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._buffer = b""
        self._replies = 0
        self.is_finished = False
        """Whether the connection must be closed, because of too many frames or too long a frame."""

    def receive(self, data: bytes) -> bytes:
        """Return the frames that respond to a client's data after the preface; see RFC 9113 §4.1."""
        self._buffer += data
        reply_frames = b""
        while len(self._buffer) >= 9 and not self.is_finished:
            length = int.from_bytes(self._buffer[:3], "big")
            frame_type, flags, stream = struct.unpack(">BBI", self._buffer[3:9])
            self.is_finished = length > _MAX_FRAME or self._replies >= _MAX_REPLIES
            if self.is_finished or len(self._buffer) < 9 + length:
                break
            payload, self._buffer = self._buffer[9 : 9 + length], self._buffer[9 + length :]
            if reply := self._make_reply(frame_type, flags, stream & 0x7FFF_FFFF, payload):
                self._replies += 1
                reply_frames += reply
        if self.is_finished:
            reply_frames += _encode_frame(
                _GOAWAY, 0, 0, struct.pack(">II", 0, _HTTP_1_1_REQUIRED) + self._reason.encode()
            )
        return reply_frames

    def _make_reply(self, frame_type: int, flags: int, stream: int, payload: bytes) -> bytes:
        if frame_type == _HEADERS:
            return _encode_frame(_HEADERS, _END_STREAM_AND_HEADERS, stream, _encode_trailers(self._reason))
        if frame_type == _SETTINGS and not flags & _ACK:
            return _encode_frame(_SETTINGS, 0, 0, b"") + _encode_frame(_SETTINGS, _ACK, 0, b"")
        if frame_type == _PING and not flags & _ACK:
            return _encode_frame(_PING, _ACK, 0, payload)
        return b""


def _encode_frame(frame_type: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", frame_type, flags, stream) + payload


def _encode_header(name: bytes, value: bytes) -> bytes:
    """Encode a header as a literal without indexing (RFC 7541 §6.2.2); ``value`` is at most 16 kB long."""
    length = bytes([len(value)]) if len(value) < 127 else b"\x7f" + _encode_varint(len(value) - 127)
    return b"\x00" + bytes([len(name)]) + name + length + value


def _encode_varint(number: int) -> bytes:
    encoded_bytes = bytearray()
    while number > 0x7F:
        encoded_bytes.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded_bytes, number])


def _encode_trailers(reason: str) -> bytes:
    return (
        _STATUS_200
        + _encode_header(b"content-type", b"application/grpc")
        + _encode_header(b"grpc-status", str(UNIMPLEMENTED).encode())
        + _encode_header(b"grpc-message", quote(reason, safe=" ;,=/:").encode())
    )


class Http1Protocol(GuardedProtocol):
    """
    Serves HTTP/1.1. Refuses each call of an HTTP/2 connection, and closes TLS connections.

    Args:
        on_grpc: Called with the client's address and ``reason`` for each refused gRPC connection.
        reason: The setting that a gRPC client must change.
        connections: The connections of the port.
        arguments: uvicorn's arguments.
    """

    _is_http1 = False
    _start = b""
    _refusal: GrpcRefusal | None = None

    def __init__(
        self,
        on_grpc: Callable[[str, str], None],
        reason: str,
        connections: Connections,
        **arguments: Any,
    ) -> None:
        super().__init__(connections, **arguments)
        self._on_grpc = on_grpc
        self._reason = reason

    def data_received(self, data: bytes) -> None:
        """Refuse HTTP/2 and TLS. Parse anything else as HTTP/1.1."""
        if self._refusal is not None:
            self._refuse(self._refusal, data)
            return
        if not self._is_http1:
            self._start += data
            if self._start.startswith(PREFACE):
                self._refusal = GrpcRefusal(self._reason)
                self._on_grpc(self._address, self._reason)
                self._refuse(self._refusal, self._start[len(PREFACE) :])
                return
            if PREFACE.startswith(self._start):
                return  # the preface may be incomplete
            if self._start.startswith(_TLS_HANDSHAKE):
                _log.warning(
                    "A client at %s was refused: it uses HTTPS on port %d, which serves HTTP; "
                    "use http:// in its URL.",
                    self._address,
                    self.server[1] if self.server else 0,
                )
                self.send_400_response("")
                return
            self._is_http1, data, self._start = True, self._start, b""
        super().data_received(data)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else "an unknown address"

    def _refuse(self, refusal: GrpcRefusal, data: bytes) -> None:
        # Do not close the connection after the response. Bytes that the client still sends would reset it
        # before the client has read the response. It times out like a connection without headers.
        if refusal.is_finished:
            return
        self.transport.write(refusal.receive(data))
        if refusal.is_finished:
            self.transport.close()
