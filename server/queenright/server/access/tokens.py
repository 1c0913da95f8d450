"""
Create, find and revoke tokens, without I/O. Only a token's hash is stored; the token itself is shown once.

A token has 256 random bits, so a plain SHA-256, which takes a microsecond, does not reveal it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.validation_messages import describe_faults
from queenright.server.access.roles import Role

TOKEN_PREFIX: Final = "qrt_"
"""The prefix of every token, so that secret scanners can detect it."""

_TOKEN_PATTERN: Final = re.compile(rf"{TOKEN_PREFIX}([0-9a-f]{{8}})_[A-Za-z0-9_-]{{43}}")
_NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,39}"
_ERASED_HASH: Final = "0" * 64


class InvalidTokensError(QueenrightError):
    """Raised when the token file is unusable, or a token is missing or invalid. The message has the fix."""


class Token(BaseModel):
    """A stored token. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
    name: Annotated[str, Field(pattern=rf"^{_NAME_PATTERN}$")]
    role: Role
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    made_at: float
    expires_at: float | None
    """When the token expires; None: never."""
    revoked_at: float | None = None

    def is_live(self, now: float) -> bool:
        """Return whether the token is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def state(self, now: float) -> str:
        """Return "live", "expired" or "revoked"."""
        if self.revoked_at is not None:
            return "revoked"
        return "live" if self.is_live(now) else "expired"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, le=1)] = 1
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a service."""

    all: tuple[Token, ...] = ()

    def find(self, token_text: str, now: float) -> Token | None:
        """Return the live token with this text, or None."""
        id_match = _TOKEN_PATTERN.fullmatch(token_text)
        token_id = id_match[1] if id_match else ""
        match = next((token for token in self.all if token.id == token_id), None)
        # Always compare, in constant time, so that timing does not reveal whether the id exists.
        is_same_hash = hmac.compare_digest(hash_token(token_text), match.sha256 if match else _ERASED_HASH)
        return match if match is not None and is_same_hash and match.is_live(now) else None

    def list_live(self, now: float) -> tuple[Token, ...]:
        """Return the live tokens."""
        return tuple(token for token in self.all if token.is_live(now))

    def with_token(self, token: Token, now: float) -> Tokens:
        """
        Return the tokens and a new one. It replaces a revoked or expired token of the same name.

        Raises:
            InvalidTokensError: A live token has the name.
        """
        if any(other.name == token.name for other in self.list_live(now)):
            raise InvalidTokensError(
                f"token {token.name!r} already exists; revoke it first, or choose another name, "
                f"such as {token.name}-2, to use both for a while"
            )
        return Tokens((*(other for other in self.all if other.name != token.name), token))

    def with_revoked(self, name: str, now: float) -> Tokens:
        """
        Return the tokens with the live token of this name revoked.

        Raises:
            InvalidTokensError: No live token has the name.
        """
        names = sorted(token.name for token in self.list_live(now))
        if name not in names:
            raise InvalidTokensError(f"no live token {name!r}; live tokens: {', '.join(names) or 'none'}")
        # Its hash is erased, so that editing the file cannot restore it.
        changes = {"revoked_at": now, "sha256": _ERASED_HASH}
        return Tokens(
            tuple(
                token.model_copy(update=changes) if token.name == name and token.revoked_at is None else token
                for token in self.all
            )
        )


def build_token(
    name: str, role: Role, *, id_: str, secret: str, now: float, expires_at: float | None
) -> tuple[Token, str]:
    """
    Return a token and its text.

    Args:
        name: The owner's name: at most 40 letters, digits and ``. _ @ -``.
        role: The role.
        id_: Eight random hexadecimal digits.
        secret: 43 random characters of URL-safe Base64.
        now: Seconds since the epoch.
        expires_at: Seconds since the epoch; None for a token that never expires.

    Raises:
        InvalidTokensError: The name is not valid.
    """
    text = f"{TOKEN_PREFIX}{id_}_{secret}"
    if not re.fullmatch(_NAME_PATTERN, name):
        raise InvalidTokensError(
            f"{name[:80]!r} is not a valid token name; use at most 40 letters, digits and . _ @ -, "
            "starting with a letter or a digit"
        )
    token = Token(id=id_, name=name, role=role, sha256=hash_token(text), made_at=now, expires_at=expires_at)
    return token, text


def hash_token(text: str) -> str:
    """Return the SHA-256 of a token, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parse_tokens(text: str | bytes) -> Tokens:
    """
    Parse a token file.

    Raises:
        InvalidTokensError: The text is not valid; the message does not contain it.
    """
    try:
        tokens = _File.model_validate_json(text).tokens
    except ValidationError as error:
        faults = describe_faults(error.errors(include_input=False), "the file", limit=1)
        raise InvalidTokensError(faults) from None
    if len({token.id for token in tokens}) < len(tokens):
        raise InvalidTokensError("two tokens have the same id")
    return Tokens(tokens)


def render_tokens(tokens: Iterable[Token]) -> str:
    """Render a token file."""
    return _File(tokens=tuple(tokens)).model_dump_json(indent=2) + "\n"
