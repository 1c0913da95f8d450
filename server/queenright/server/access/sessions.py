"""Sessions of the console: a browser that has shown a token once. In memory only: a restart ends them all."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from queenright.runtime.events import Clock
from queenright.server.access.tokens import Token, Tokens, hash_token

COOKIE: Final = "queenright_session"
SECONDS: Final = 12 * 3600
"""How long a session lasts."""
_MAX_SESSIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Session:
    token_id: str
    until: float


class Sessions:
    """
    The sessions there are; each ends with its token.

    Args:
        clock: Seconds since the epoch.
        new_id: Returns random words.
        limit: Sessions at once; the oldest ends for a new one.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        new_id: Callable[[], str] = lambda: secrets.token_urlsafe(32),
        limit: int = _MAX_SESSIONS,
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        self._most = limit
        self._known: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, token: Token) -> str:
        """Begin a session and return the words of its cookie; what is kept is their hash."""
        cookie = self._new_id()
        self._known[hash_token(cookie)] = _Session(token.id, self._clock() + SECONDS)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return cookie

    def token(self, cookie: str, tokens: Tokens) -> Token | None:
        """Return the live token behind a cookie; None if the session or the token has ended."""
        key, now = hash_token(cookie), self._clock()
        found = self._known.get(key)
        if found is None:
            return None
        if now < found.until:
            for one in tokens.all:
                if one.id == found.token_id and one.live(now):
                    return one
        del self._known[key]
        return None

    def end(self, cookie: str) -> None:
        """End one."""
        self._known.pop(hash_token(cookie), None)
