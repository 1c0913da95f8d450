"""The URL of a host and a port."""

from __future__ import annotations


def http_url(host: str, port: int) -> str:
    """Return ``http://host:port``; an IPv6 address is put in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
