"""
Login sessions of the console, in signed cookies: each process that has the key accepts them.

The signature covers the hash of the token, too. Who has read only the token file, or only the key, cannot
make a cookie.
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
_SHAPE: Final = re.compile(r"(([0-9a-f]{8})\.([0-9]{1,12})\.[A-Za-z0-9_-]{16})\.([A-Za-z0-9_-]{43})")
"""The token's id, the end, and a random text; then the signature of all three."""
_MAX_ENDED: Final = 10_000


class ConsoleSessions:
    """
    Console sessions; each ends with its token.

    Args:
        clock: Seconds since the epoch.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.key = secrets.token_bytes(32)
        """Signs the cookies. With that of an earlier or another process, its sessions continue."""
        self._ended_sessions: OrderedDict[str, None] = OrderedDict()
        """The latest sessions that were signed out of in this process."""

    def start(self, token: Token) -> str:
        """Start a session and return its cookie."""
        until = int(self._clock()) + SESSION_SECONDS
        session = f"{token.id}.{until}.{secrets.token_urlsafe(12)}"
        return f"{session}.{self._sign(session, token)}"

    def find_token(self, cookie: str, tokens: Tokens) -> Token | None:
        """Return the live token of a cookie; None if the session or the token has ended, or it is forged."""
        match = _SHAPE.fullmatch(cookie)
        if match is None:
            return None
        session, token_id, until, signature = match.groups()
        now = self._clock()
        for token in tokens.list_live(now):
            if token.id == token_id and hmac.compare_digest(signature, self._sign(session, token)):
                return token if now < int(until) and session not in self._ended_sessions else None
        return None

    def end(self, cookie: str) -> None:
        """End a session, as far as this process is asked."""
        match = _SHAPE.fullmatch(cookie)
        if match is not None:
            self._ended_sessions[match[1]] = None
            if len(self._ended_sessions) > _MAX_ENDED:
                self._ended_sessions.popitem(last=False)

    def _sign(self, session: str, token: Token) -> str:
        mac = hmac.digest(self.key, f"{session}.{token.sha256}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
