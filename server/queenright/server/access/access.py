"""Authenticate and authorize the callers of the API, the telemetry port and the console."""

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
from queenright.server.access.addresses import get_rate_limit_network, is_loopback
from queenright.server.access.caller import Caller
from queenright.server.access.login_sessions import ConsoleSessions
from queenright.server.access.roles import AccessLevel, Role, is_allowed, list_roles
from queenright.server.access.token_file import TokenFile
from queenright.server.access.tokens import InvalidTokensError, Token, Tokens, build_token
from queenright.server.settings import Settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Denial:
    """The HTTP response to a request that is not allowed."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...] = ()


def get_tokens_path(settings: Settings) -> Path:
    """Return the path of a service's token file."""
    return settings.auth.tokens_file or settings.storage / "tokens.json"


class Access:
    """
    Authenticates and authorizes callers. An instance belongs to one event loop.

    Args:
        settings: Settings with the token file, and whether a token is required.
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
        self.file = TokenFile(get_tokens_path(settings))
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
            InvalidTokensError: A port on one of these addresses requires a token, but no token is live.
        """
        exposed_hosts = [host for host in bind_addresses if self.is_token_required(host)]
        if exposed_hosts and not self.file.load().list_live(self._clock()):
            reason, remedy = "auth.required is true", "set auth.required to false"
            if not self._settings.auth.required:
                reason, remedy = "other machines can reach it", "listen on 127.0.0.1"
            raise InvalidTokensError(
                f"{exposed_hosts[0]} requires a token ({reason}), but {self.file.path} has no live token. "
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
        return self._own_tokens.find(token_text, now) or self.file.load().find(token_text, now)

    def create_own_token(self) -> str:
        """Create a reporter token for child processes. It is valid while this process runs."""
        token, text = build_token(
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
            session: The session cookie of the console, or None.
            is_token_required: Whether this port requires a token. If not, callers without a token are admins,
                but a token that is sent must be valid.
        """
        try:
            if token_text is not None:
                token = self.find_token(token_text)
                if token is None:
                    return self.reject_token(address)
            else:
                token = self.sessions.find_token(session, self.file.load()) if session else None
        except InvalidTokensError:
            return Denial(503, "the token file cannot be used; see the service's log")
        if token is not None:
            return Caller(token.role, address, token.name, token.id)
        return Caller(None if is_token_required else Role.ADMIN, address)

    def reject_token(self, address: str) -> Denial:
        """Count an invalid token, and return the denial."""
        if wait := self._failures.take(get_rate_limit_network(address)):
            return Denial(
                429,
                "too many invalid tokens from your address; check your token, and retry later",
                (("Retry-After", format_retry_after(wait)),),
            )
        _log.warning("refused a token from %s", redact(address, 60) or "an unknown address")
        return Denial(
            401,
            "this token is unknown, expired or revoked; `queenright token list` shows the live tokens",
            (("WWW-Authenticate", 'Bearer realm="queenright", error="invalid_token"'),),
        )

    def is_valid(self, caller: Caller) -> bool:
        """Return whether a caller's token is still valid."""
        if not caller.token_id:
            return True
        try:
            live_tokens = (*self._own_tokens.all, *self.file.load().list_live(self._clock()))
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
                # Written with a colon, the header would be masked as a secret.
                "a token is required; send it in the header Authorization, after the word Bearer; "
                "an admin creates one with `queenright token create`",
                (("WWW-Authenticate", 'Bearer realm="queenright"'),),
            )
        if is_allowed(caller.role, level):
            return None
        *other_roles, last_role = [role.value for role in list_roles(level)]
        required_roles = f"{', '.join(other_roles)} or {last_role}" if other_roles else last_role
        return Denial(
            403,
            f"the token {caller.name!r} has the role {caller.role.value}; this requires {required_roles}",
            (("WWW-Authenticate", 'Bearer realm="queenright", error="insufficient_scope"'),),
        )

    def check_rate(self, caller: Caller) -> Denial | None:
        """Count a request; return a denial if it exceeds the rate limit, else None."""
        key = caller.key if caller.token_id else get_rate_limit_network(caller.address)
        if not (wait := self._requests.take(key)):
            return None
        return Denial(
            429,
            f"more than {REQUESTS_PER_SECOND:g} requests per second; send fewer, or use the event stream",
            (("Retry-After", format_retry_after(wait)),),
        )


REQUESTS_PER_SECOND: Final = 2000.0
"""Far above the needs of the console, the CLI and scrapers, so that only a client in a loop exceeds it."""
REQUEST_BURST: Final = 4000
FAILED_LOGINS_PER_MINUTE: Final = 20.0
"""A person mistypes a few times. A token has 256 bits, so the limit protects the log more than the token."""
MAX_TRACKED_CALLERS: Final = 10_000


class RateLimit:
    """
    Allows each caller ``burst`` requests at once, and ``rate`` per second after that.

    Above ``limit`` callers, the least recent one is forgotten, and starts again with its full burst.

    Args:
        rate: Requests per second.
        burst: Requests that are allowed at once after a pause.
        monotonic: A monotonic clock, in seconds.
        limit: Maximum number of callers to track.
    """

    def __init__(
        self, rate: float, burst: float, *, monotonic: Callable[[], float], limit: int = MAX_TRACKED_CALLERS
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._max_callers = limit
        self._tokens_left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens_left)

    def take(self, caller: Hashable) -> float:
        """Count a request; return 0 if it is allowed, otherwise the seconds to wait."""
        now = self._monotonic()
        tokens, updated_at = self._tokens_left.pop(caller, (self._burst, now))
        tokens = min(self._burst, tokens + (now - updated_at) * self._rate)
        wait = 0.0
        if tokens >= 1:
            tokens -= 1
        else:
            wait = (1 - tokens) / self._rate
        self._tokens_left[caller] = (tokens, now)
        if len(self._tokens_left) > self._max_callers:
            self._tokens_left.popitem(last=False)
        return wait


def format_retry_after(seconds: float) -> str:
    """Format a ``Retry-After`` header: whole seconds, at least one."""
    return str(max(1, math.ceil(seconds)))
