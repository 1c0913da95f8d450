"""Hop-by-hop headers, which apply to one connection and are not forwarded (RFC 9110 §7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Header = tuple[bytes, bytes]

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


def forward_headers(headers: Iterable[Header], *, without: frozenset[bytes] = frozenset()) -> list[Header]:
    """
    Return the headers to forward, with their names in lower case.

    Args:
        headers: Names and values as received.
        without: Further header names to omit, in lower case.
    """
    lowercase_headers = [(name.lower(), value) for name, value in headers]
    listed_names = b",".join(value for name, value in lowercase_headers if name == b"connection")
    excluded_names = _HOP_BY_HOP | without | {part.strip().lower() for part in listed_names.split(b",")}
    return [header for header in lowercase_headers if header[0] not in excluded_names]
