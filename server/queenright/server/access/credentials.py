"""Read credentials from request headers."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers

from queenright.server.access.login_sessions import SESSION_COOKIE

_MAX_COOKIE_BYTES: Final = 16 << 10


class DuplicateTokenError(ValueError):
    """Raised when a request has more than one ``Authorization`` header."""


def read_bearer_token(headers: Headers) -> str | None:
    """
    Return the token of ``Authorization: Bearer``, or None without a bearer token.

    Raises:
        DuplicateTokenError: There is more than one header.
    """
    values = headers.getlist("authorization")
    if len(values) > 1:
        raise DuplicateTokenError("the header Authorization is present twice; send it once")
    scheme, _, credentials = (values[0] if values else "").strip().partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None


def read_session_cookie(headers: Headers) -> str | None:
    """Return the console's session cookie, or None."""
    text = headers.get("cookie", "")
    if SESSION_COOKIE not in text or len(text) > _MAX_COOKIE_BYTES:
        return None
    # Cookies are parsed one by one, so that an invalid one does not affect the others.
    for part in text.split(";"):
        name, _, value = part.strip().partition("=")
        if name == SESSION_COOKIE and value:
            return value.strip('"')
    return None
