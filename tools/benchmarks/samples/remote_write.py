"""A minimal client of Prometheus' remote write: series with samples, sent in one body."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import httpx

_HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


def encode_samples(samples: Iterable[tuple[float, float]]) -> bytes:
    """Return encoded samples, given as ``(seconds, value)``; several series may share them."""
    return b"".join(
        _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(round(time * 1000)))
        for time, value in samples
    )


def encode_series(labels: Mapping[str, str], samples: bytes) -> bytes:
    """Return an encoded series with samples from ``encode_samples``."""
    # Prometheus wants the labels sorted by name.
    pairs = (
        _field(1, _field(1, name.encode()) + _field(2, value.encode()))
        for name, value in sorted(labels.items())
    )
    return _field(1, b"".join(pairs) + samples)


def write(client: httpx.Client, parts: Sequence[bytes]) -> None:
    """
    Send series to ``/api/v1/write``.

    Raises:
        httpx.HTTPStatusError: Prometheus rejects them.
    """
    answer = client.post("/api/v1/write", content=_snappy(b"".join(parts)), headers=_HEADERS)
    answer.raise_for_status()


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _snappy(content: bytes) -> bytes:
    """Return ``content`` in snappy's format as a single literal, which is valid and not compressed."""
    return _varint(len(content)) + bytes([63 << 2]) + struct.pack("<I", len(content) - 1) + content
