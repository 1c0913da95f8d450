"""Which certificates an HTTP client of ours goes by: to read all there are takes longer than a request."""

from __future__ import annotations

import ssl


def certificates(*urls: str) -> ssl.SSLContext | bool:
    """
    Return what httpx takes as ``verify`` in a client that asks ``urls`` alone.

    It is httpx's own default if one of them is https, else a context that is made at once because it trusts
    nobody: an https address that was not named here is refused, never asked unverified.
    """
    if any(url.lower().lstrip().startswith("https:") for url in urls):
        return True
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
