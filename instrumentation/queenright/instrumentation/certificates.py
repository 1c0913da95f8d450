"""TLS verification for our HTTP clients. Loading the CA bundle takes longer than a plain HTTP request."""

from __future__ import annotations

import ssl


def certificates(*urls: str) -> ssl.SSLContext | bool:
    """
    Return the ``verify`` argument of an httpx client that requests only ``urls``.

    It is httpx's default if one of them is https. Otherwise it is an empty context, which is created without
    loading the CA bundle and trusts no certificate, so an unexpected https URL fails instead of being
    requested unverified.
    """
    if any(url.lower().lstrip().startswith("https:") for url in urls):
        return True
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
