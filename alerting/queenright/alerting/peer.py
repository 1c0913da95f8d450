"""The address of one Alertmanager, with what is secret kept apart from what may be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """
    One Alertmanager: ``name`` is its base URL without credentials, safe to show, to log and to store.

    ``user`` and ``password`` are sent as HTTP basic authentication and never shown.
    """

    name: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> PeerAddress:
        """
        Read a peer's URL.

        Raises:
            ValueError: it is no http or https URL with a host; the message holds no credentials.
        """
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ValueError("is no URL; write http://host:9093") from None
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError("needs http:// or https:// and a host, such as http://127.0.0.1:9093")
        if parts.query or parts.fragment:
            raise ValueError(
                "must have neither ? nor #; write http://host:9093, with a path prefix if need be"
            )
        shown = f"[{host}]" if ":" in host else host
        if port is not None:
            shown = f"{shown}:{port}"
        return cls(
            f"{parts.scheme}://{shown}{parts.path.rstrip('/')}",
            unquote(parts.username or ""),
            unquote(parts.password or ""),
        )

    @property
    def auth(self) -> tuple[str, str] | None:
        """What to log in with, if anything."""
        return (self.user, self.password) if self.user or self.password else None
