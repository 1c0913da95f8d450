"""Headers that every answer has: what a browser may do with it, and who may keep it."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders

_ALWAYS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_DENY_ALL: Final = "default-src 'none'; frame-ancestors 'none'"


def set_security_headers(headers: MutableHeaders) -> None:
    """
    Add what is missing.

    Pages bring a ``Content-Security-Policy`` of their own; whatever else a browser is shown may do nothing.
    What an answer says of the fleet no cache keeps; with an ``ETag`` a caller may, and asks again.
    """
    headers.update(_ALWAYS)
    headers.setdefault("Content-Security-Policy", _DENY_ALL)
    headers.setdefault("Cache-Control", "private, no-cache" if "etag" in headers else "no-store")
