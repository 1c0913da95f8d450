"""The address of an HTTP API, with what is secret kept apart from what may be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """
    Where an API is: ``name`` is its base URL without credentials, safe to show, to log and to store.

    ``user`` and ``password`` are sent as HTTP basic authentication and never shown.
    """

    name: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def auth(self) -> tuple[str, str] | None:
        """What to log in with, if anything."""
        return (self.user, self.password) if self.user or self.password else None


def read_base_url(url: str, *, port: int) -> tuple[str, str, str]:
    """
    Return (base URL without credentials, user, password) of a URL, which may have a path prefix.

    Args:
        url: As a person wrote it.
        port: Of the example that an error gives.

    Raises:
        ValueError: it is no http or https URL with a host; the message repeats nothing of it.
    """
    try:
        parts = urlsplit(url.strip())
        host, given = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"is no URL; write http://host:{port}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"needs http:// or https:// and a host, such as http://127.0.0.1:{port}")
    if parts.query or parts.fragment:
        raise ValueError(
            f"must have neither ? nor #; write http://host:{port}, with a path prefix if need be"
        )
    shown = f"[{host}]" if ":" in host else host
    if given is not None:
        shown = f"{shown}:{given}"
    name = f"{parts.scheme}://{shown}{parts.path.rstrip('/')}"
    return name, unquote(parts.username or ""), unquote(parts.password or "")
