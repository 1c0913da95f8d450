"""Login sessions of the console, in memory: a restart ends them all."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from queenright.runtime.events import Clock
from queenright.server.access.tokens import Token, Tokens, hash_token

COOKIE: Final = "queenright_session"
SECONDS: Final = 12 * 3600
"""The lifetime of a session."""
_MAX_SESSIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Session:
    token_id: str
    until: float


class ConsoleSessions:
    """
    Open console sessions; each ends with its token.

    Args:
        clock: Seconds since the epoch.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, token: Token) -> str:
        """Start a session and return its cookie; only the cookie's hash is kept."""
        cookie = secrets.token_urlsafe(32)
        self._sessions[hash_token(cookie)] = _Session(token.id, self._clock() + SECONDS)
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return cookie

    def find_token(self, cookie: str, tokens: Tokens) -> Token | None:
        """Return the live token of a cookie; None if the session or the token has ended."""
        key, now = hash_token(cookie), self._clock()
        session = self._sessions.get(key)
        if session is None:
            return None
        if now < session.until:
            for token in tokens.all:
                if token.id == session.token_id and token.is_live(now):
                    return token
        del self._sessions[key]
        return None

    def end(self, cookie: str) -> None:
        """End a session."""
        self._sessions.pop(hash_token(cookie), None)
