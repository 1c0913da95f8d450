"""URL and access token of the service, from arguments or the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from queenright.client.errors import InvalidAddressError

LOCAL_URL: Final = "http://127.0.0.1:8420"
URL_VARIABLE: Final = "QUEENRIGHT_URL"
TOKEN_VARIABLE: Final = "QUEENRIGHT_TOKEN"
TOKEN_FILE_VARIABLE: Final = "QUEENRIGHT_TOKEN_FILE"


def resolve_url(url: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """
    Return the URL of the service, without a trailing slash.

    Default: ``QUEENRIGHT_URL``, then http://127.0.0.1:8420.

    Raises:
        InvalidAddressError: The address is not an HTTP URL.
    """
    url = (url or environment.get(URL_VARIABLE) or LOCAL_URL).strip()
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # rejects hosts that the resolver cannot encode
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidAddressError(f"{remove_credentials(url)!r} is not a URL; pass one such as {LOCAL_URL}.")
    return url.rstrip("/")


def remove_credentials(url: str) -> str:
    """Return a URL for messages, without user and password; it need not be valid."""
    return re.sub(r"^(\w*://)?.*@", r"\1", url, flags=re.DOTALL)


def resolve_token(
    token: str | None, *, file: Path | str | None = None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """
    Return the access token, or None if none is set.

    It is ``token``, else the content of ``file``, else ``QUEENRIGHT_TOKEN``, else the content of the file
    that ``QUEENRIGHT_TOKEN_FILE`` names. Empty variables are ignored.

    Raises:
        InvalidAddressError: The file cannot be read or is empty, or the token is malformed.
    """
    if token is None and file is None:
        token = environment.get(TOKEN_VARIABLE) or None
        file = environment.get(TOKEN_FILE_VARIABLE) or None
        remedy = f"or unset {TOKEN_FILE_VARIABLE}"
    else:
        remedy = "or pass another file"
    if token is None and file is not None:
        token = _read_token(Path(file), remedy)
    if token is None:
        return None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidAddressError(
            "the token is malformed: it is empty, or contains spaces, line breaks or non-ASCII characters. "
            "Create one with `queenright token create NAME`, or leave it out."
        )
    return token


def _read_token(file: Path, remedy: str) -> str:
    try:
        return file.read_text(encoding="ascii")
    except UnicodeDecodeError:
        raise InvalidAddressError(
            f"{file} does not contain a token, which has only ASCII characters."
        ) from None
    except OSError as error:
        raise InvalidAddressError(
            f"cannot read the token from {file} ({error.strerror or type(error).__name__}); "
            f"create one with `queenright token create NAME`, {remedy}."
        ) from None


def build_path(*parts: str) -> str:
    """
    Return a URL path with one percent-encoded segment per name.

    Raises:
        InvalidAddressError: A name is blank, is ``.`` or ``..``, or cannot be encoded.
    """
    if not all(part.strip() for part in parts):
        raise InvalidAddressError("a name in the URL is blank; pass the id of the agent, session or ticket")
    return "".join(f"/{_encode_segment(part)}" for part in parts)


def _encode_segment(name: str) -> str:
    if name in (".", ".."):  # clients resolve these segments, and they cannot be escaped
        raise InvalidAddressError(f"{name!r} cannot be a name in a URL; rename the agent, graph or task")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise InvalidAddressError(f"{name!r} cannot be a name in a URL: it is not valid Unicode") from None
