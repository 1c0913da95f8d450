"""The certificates that HTTP clients trust, read once for all tests."""

from __future__ import annotations

import functools
import ssl
from typing import Any

from httpx._transports import default


def share_certificates() -> None:
    """
    Read the trusted certificates once for all clients that use the default ones.

    Hundreds of tests open clients, mostly for http://. Reading the certificates takes 4 % of the test time.
    """
    original_create = vars(default)["create_ssl_context"]

    @functools.cache
    def read_trusted_certificates() -> ssl.SSLContext:
        context: ssl.SSLContext = original_create(verify=True, trust_env=False)
        return context

    def create_ssl_context(*, verify: Any, cert: Any, trust_env: bool) -> ssl.SSLContext:
        if verify is True and cert is None and not trust_env:
            return read_trusted_certificates()
        context: ssl.SSLContext = original_create(verify=verify, cert=cert, trust_env=trust_env)
        return context

    vars(default)["create_ssl_context"] = create_ssl_context
