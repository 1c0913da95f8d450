"""
Login sessions of the console, as signed cookies that every process with the key accepts.

The signature also covers the hash of the token, so neither the token file nor the key alone is enough to
forge a cookie.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from typing import Final

from queenright.runtime.events import Clock
from queenright.server.access.tokens import Token, Tokens

SESSION_COOKIE: Final = "queenright_session"
SESSION_SECONDS: Final = 12 * 3600
"""The lifetime of a session."""
_COOKIE_PATTERN: Final = re.compile(r"(([0-9a-f]{8})\.([0-9]{1,12})\.[A-Za-z0-9_-]{16})\.([A-Za-z0-9_-]{43})")
"""The token's id, the expiry time and a random text, then the signature of all three."""
_MAX_ENDED_SESSIONS: Final = 10_000


class ConsoleSessions:
    """
    Login sessions of the console. A session ends at the latest with its token.

    Args:
        clock: Seconds since the epoch.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.key = secrets.token_bytes(32)
        """The key that signs cookies. Processes with the same key accept each other's sessions."""
        self._ended_sessions: OrderedDict[str, None] = OrderedDict()
        """The sessions that this process ended last."""

    def start(self, token: Token) -> str:
        """Start a session and return its cookie."""
        expires_at = int(self._clock()) + SESSION_SECONDS
        session = f"{token.id}.{expires_at}.{secrets.token_urlsafe(12)}"
        return f"{session}.{self._sign(session, token)}"

    def find_token(self, cookie: str, tokens: Tokens) -> Token | None:
        """Return the live token of a cookie, or None if it is forged or its session or token has ended."""
        match = _COOKIE_PATTERN.fullmatch(cookie)
        if match is None:
            return None
        session, token_id, expires_at, signature = match.groups()
        now = self._clock()
        for token in tokens.list_live(now):
            if token.id == token_id and hmac.compare_digest(signature, self._sign(session, token)):
                return token if now < int(expires_at) and session not in self._ended_sessions else None
        return None

    def end(self, cookie: str) -> None:
        """End a session in this process. Other processes accept its cookie until it expires."""
        match = _COOKIE_PATTERN.fullmatch(cookie)
        if match is not None:
            self._ended_sessions[match[1]] = None
            if len(self._ended_sessions) > _MAX_ENDED_SESSIONS:
                self._ended_sessions.popitem(last=False)

    def _sign(self, session: str, token: Token) -> str:
        mac = hmac.digest(self.key, f"{session}.{token.sha256}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
