"""Security and cache headers of every response."""

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
    Add missing security and cache headers.

    Pages set their own ``Content-Security-Policy``; other responses may load nothing. Responses are not
    cached, except those with an ``ETag``, which a client may keep and revalidate.
    """
    headers.update(_ALWAYS)
    headers.setdefault("Content-Security-Policy", _DENY_ALL)
    headers.setdefault("Cache-Control", "private, no-cache" if "etag" in headers else "no-store")
