"""Authenticate and authorize callers, for both ports and the console."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queenright.instrumentation.redaction import redact
from queenright.runtime.events import Clock
from queenright.server.access.addresses import is_loopback, rate_limit_network
from queenright.server.access.caller import Caller
from queenright.server.access.login_sessions import ConsoleSessions
from queenright.server.access.roles import AccessLevel, Role, is_allowed, roles_for
from queenright.server.access.token_file import TokenFile
from queenright.server.access.tokens import InvalidTokensError, Token, Tokens, new_token
from queenright.server.settings import Settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Denial:
    """A refusal, as an HTTP response."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...] = ()


def tokens_file(settings: Settings) -> Path:
    """Return the path of a service's token file."""
    return settings.auth.tokens_file or settings.storage / "tokens.json"


class Access:
    """
    Authenticates and authorizes callers. Bound to one event loop.

    Args:
        settings: The token file, and whether a token is required.
        clock: Seconds since the epoch.
        monotonic: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.file = TokenFile(tokens_file(settings))
        self._own_tokens = Tokens()
        self.sessions = ConsoleSessions(clock=clock)
        self._requests = RateLimit(REQUESTS_PER_SECOND, REQUEST_BURST, monotonic=monotonic)
        self._failures = RateLimit(
            FAILED_LOGINS_PER_MINUTE / 60, FAILED_LOGINS_PER_MINUTE, monotonic=monotonic
        )

    @property
    def settings(self) -> Settings:
        """The service's settings."""
        return self._settings

    def is_token_required(self, bind_address: str) -> bool:
        """Return whether a port that listens on this address requires a token."""
        return self._settings.auth.required or not is_loopback(bind_address)

    def require_live_token(self, *bind_addresses: str) -> None:
        """
        Check that a live token exists if one is required.

        Raises:
            InvalidTokensError: A port on one of these addresses requires a token, and there is no live one.
        """
        exposed_hosts = [host for host in bind_addresses if self.is_token_required(host)]
        if exposed_hosts and not self.file.now().list_live(self._clock()):
            why, remedy = "auth.required is true", "set auth.required to false"
            if not self._settings.auth.required:
                why, remedy = "other machines can reach it", "listen on 127.0.0.1"
            raise InvalidTokensError(
                f"{exposed_hosts[0]} requires a token ({why}), but {self.file.path} has no live token. "
                f"Create one with `queenright token create NAME --role admin "
                f"--tokens-file {self.file.path}`, or {remedy}"
            )

    # -- authentication ----------------------------------------------------------------------------

    def find_token(self, token_text: str) -> Token | None:
        """
        Return the live token with this text, or None.

        Raises:
            InvalidTokensError: The token file cannot be used.
        """
        now = self._clock()
        return self._own_tokens.find(token_text, now) or self.file.now().find(token_text, now)

    def create_own_token(self) -> str:
        """Create a reporter token for child processes. It is valid while this process runs."""
        token, text = new_token(
            "queenright",
            Role.REPORTER,
            id_=secrets.token_hex(4),
            secret=secrets.token_urlsafe(32),
            now=self._clock(),
            expires_at=None,
        )
        self._own_tokens = Tokens((*self._own_tokens.all, token))
        return text

    def identify(
        self, address: str, *, token_text: str | None, session: str | None, is_token_required: bool
    ) -> Caller | Denial:
        """
        Return the caller of a request, or a denial.

        Args:
            address: The client's address.
            token_text: The token that was sent, or None.
            session: The console's session cookie, or None.
            is_token_required: Whether this port requires a token. If not, callers without one are admins; a
                token that is sent is still checked.
        """
        try:
            if token_text is not None:
                token = self.find_token(token_text)
                if token is None:
                    return self.reject_token(address)
            else:
                token = self.sessions.find_token(session, self.file.now()) if session else None
        except InvalidTokensError:
            return Denial(503, "the token file cannot be used; see the service's log")
        if token is not None:
            return Caller(token.role, address, token.name, token.id)
        return Caller(None if is_token_required else Role.ADMIN, address)

    def reject_token(self, address: str) -> Denial:
        """Count an invalid token, and return the denial."""
        if wait := self._failures.take(rate_limit_network(address)):
            return Denial(
                429,
                "too many invalid tokens from your address; check your token and wait",
                (("Retry-After", retry_after(wait)),),
            )
        _log.warning("refused a token from %s", redact(address, 60) or "an unknown address")
        return Denial(
            401,
            "this token is unknown, expired or revoked; run `queenright token list` to see the live ones",
            (("WWW-Authenticate", 'Bearer realm="queenright", error="invalid_token"'),),
        )

    def is_valid(self, caller: Caller) -> bool:
        """Return whether a caller's token is still valid."""
        if not caller.token_id:
            return True
        try:
            live_tokens = (*self._own_tokens.all, *self.file.now().list_live(self._clock()))
        except InvalidTokensError:
            return False
        return any(token.id == caller.token_id for token in live_tokens)

    # -- authorization -----------------------------------------------------------------------------

    def check_role(self, caller: Caller, level: AccessLevel) -> Denial | None:
        """Return a denial if the caller's role is not sufficient, else None."""
        if level is AccessLevel.OPEN:
            return None
        if caller.role is None:
            return Denial(
                401,
                "a token is required in the header Authorization, after the word Bearer; "
                "an admin creates one with `queenright token create`",
                (("WWW-Authenticate", 'Bearer realm="queenright"'),),
            )
        if is_allowed(caller.role, level):
            return None
        *others, last = [role.value for role in roles_for(level)]
        required_roles = f"{', '.join(others)} or {last}" if others else last
        return Denial(
            403,
            f"the token {caller.name!r} has the role {caller.role.value}; this requires {required_roles}",
            (("WWW-Authenticate", 'Bearer realm="queenright", error="insufficient_scope"'),),
        )

    def check_rate(self, caller: Caller) -> Denial | None:
        """Count a request; return a denial if it exceeds the rate limit, else None."""
        key = caller.key if caller.token_id else rate_limit_network(caller.address)
        if not (wait := self._requests.take(key)):
            return None
        return Denial(
            429,
            f"more than {REQUESTS_PER_SECOND:g} requests per second; wait, or use the event stream",
            (("Retry-After", retry_after(wait)),),
        )


REQUESTS_PER_SECOND: Final = 2000.0
"""Far above what the console, the command line and scrapers need. Only a client in a loop reaches it."""
REQUEST_BURST: Final = 4000
FAILED_LOGINS_PER_MINUTE: Final = 20.0
"""A person mistypes a few times. A token has 256 bits, so the limit protects the log more than the token."""
MAX_CALLERS: Final = 10_000


class RateLimit:
    """
    Allows each caller ``burst`` requests at once, and ``rate`` per second after that.

    Beyond ``limit`` callers, the least recently seen is dropped, which gives it a full bucket.

    Args:
        rate: Requests per second.
        burst: Requests at once after a pause.
        monotonic: A monotonic clock, in seconds.
        limit: Callers to remember.
    """

    def __init__(
        self, rate: float, burst: float, *, monotonic: Callable[[], float], limit: int = MAX_CALLERS
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._most = limit
        self._tokens_left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens_left)

    def take(self, caller: Hashable) -> float:
        """Count a request; return 0 if it is allowed, otherwise the seconds to wait."""
        now = self._monotonic()
        remaining, at = self._tokens_left.pop(caller, (self._burst, now))
        remaining = min(self._burst, remaining + (now - at) * self._rate)
        wait = 0.0
        if remaining >= 1:
            remaining -= 1
        else:
            wait = (1 - remaining) / self._rate
        self._tokens_left[caller] = (remaining, now)
        if len(self._tokens_left) > self._most:
            self._tokens_left.popitem(last=False)
        return wait


def retry_after(seconds: float) -> str:
    """Format a ``Retry-After`` header: whole seconds, at least one."""
    return str(max(1, math.ceil(seconds)))
