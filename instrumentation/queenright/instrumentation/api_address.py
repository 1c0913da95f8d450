"""The address of an HTTP API, with its credentials kept separate."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """
    The address of an API.

    Attributes:
        name: The base URL without credentials; safe to display, log and store.
        user: User for HTTP basic authentication; never displayed.
        password: Password for HTTP basic authentication; never displayed.
    """

    name: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def auth(self) -> tuple[str, str] | None:
        """The user and password for basic authentication, if any."""
        return (self.user, self.password) if self.user or self.password else None


def read_base_url(url: str, *, port: int) -> tuple[str, str, str]:
    """
    Split a URL into base URL without credentials, user and password. The URL may have a path prefix.

    Args:
        url: The URL from a setting or option.
        port: The port for the example in error messages.

    Raises:
        ValueError: The address is not an http or https URL with a host. The message does not repeat the URL,
            which may contain a password.
    """
    try:
        parts = urlsplit(url.strip())
        host, url_port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"is not a valid URL; use http://host:{port}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"needs http:// or https:// and a host, such as http://127.0.0.1:{port}")
    if parts.query or parts.fragment:
        raise ValueError(f"must not contain ? or #; use http://host:{port}, optionally with a path prefix")
    netloc = f"[{host}]" if ":" in host else host
    if url_port is not None:
        netloc = f"{netloc}:{url_port}"
    name = f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}"
    return name, unquote(parts.username or ""), unquote(parts.password or "")
