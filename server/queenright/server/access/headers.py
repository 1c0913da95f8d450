"""Security and cache headers of every response."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders

_SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_DEFAULT_CONTENT_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"


def set_security_headers(headers: MutableHeaders) -> None:
    """
    Add missing security and cache headers.

    Pages set their own ``Content-Security-Policy``; other responses may load nothing. Responses are not
    cached, except those with an ``ETag``, which a client may keep and revalidate.
    """
    headers.update(_SECURITY_HEADERS)
    headers.setdefault("Content-Security-Policy", _DEFAULT_CONTENT_POLICY)
    headers.setdefault("Cache-Control", "private, no-cache" if "etag" in headers else "no-store")
