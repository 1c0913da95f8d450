"""Where the service is, and with which token it is asked: what is said, else the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from queenright.client.errors import InvalidAddressError

LOCAL: Final = "http://127.0.0.1:8420"
URL: Final = "QUEENRIGHT_URL"
TOKEN: Final = "QUEENRIGHT_TOKEN"
TOKEN_FILE: Final = "QUEENRIGHT_TOKEN_FILE"


def url_of(said: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """
    Return where the service is: ``said``, else ``QUEENRIGHT_URL``, else on this machine. No slash ends it.

    Raises:
        InvalidAddressError: That is no URL.
    """
    url = (said or environment.get(URL) or LOCAL).strip()
    try:
        parts = urlsplit(url)
        fits = parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise InvalidAddressError(f"{url!r} is no URL; name the service as in {LOCAL}.")
    return url.rstrip("/")


def token_of(
    said: str | None, *, file: Path | str | None = None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """
    Return the token to ask with; None for none.

    It is what is said, else what is in ``file``, else ``QUEENRIGHT_TOKEN``, else what is in the file that
    ``QUEENRIGHT_TOKEN_FILE`` names. Empty variables are as good as none.

    Raises:
        InvalidAddressError: The file cannot be read or is empty, or the token has characters that none has.
    """
    if said is None and file is None:
        said = environment.get(TOKEN) or None
        file = environment.get(TOKEN_FILE) or None
    token = said if said is not None else None if file is None else _read(Path(file))
    if token is None:
        return None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidAddressError(
            "what was given as a token is none: it is empty, or has blanks or line breaks in it. "
            "Make one with `queenright token create NAME`, or ask without."
        )
    return token


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except UnicodeDecodeError:
        raise InvalidAddressError(f"{file} holds no token: it is not ASCII.") from None
    except OSError as error:
        raise InvalidAddressError(
            f"the token cannot be read from {file} ({error.strerror or type(error).__name__}); "
            f"make one with `queenright token create NAME`, or unset {TOKEN_FILE}."
        ) from None


def path(*parts: str) -> str:
    """
    Return a path of names, each a segment of its own whatever is in it.

    Raises:
        InvalidAddressError: A name is blank, or only dots: the path would be another one; or it cannot be
            written.
    """
    if not all(part.strip() for part in parts):
        raise InvalidAddressError("a name is empty: say which one is meant")
    # A dot alone is a step in a path, and cannot be written in any other way.
    return "".join(f"/{_segment(part)}" for part in parts)


def _segment(name: str) -> str:
    if name in (".", ".."):
        raise InvalidAddressError(f"{name!r} is no name: it would be another path")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise InvalidAddressError(f"{name!r} is no name: it has half of a character in it") from None
