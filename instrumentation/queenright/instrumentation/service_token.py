"""Read the API token from an environment variable or a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

TOKEN_ENV: Final = "QUEENRIGHT_TOKEN"
TOKEN_FILE_ENV: Final = "QUEENRIGHT_TOKEN_FILE"

_LENGTH_LIMIT: Final = 4096
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")


def read_service_token(environment: Mapping[str, str] | None = None) -> str | None:
    """
    Return ``QUEENRIGHT_TOKEN``, or the content of the file ``QUEENRIGHT_TOKEN_FILE``; None if neither is set.

    An invalid token (several words, an unreadable file) also gives None: the service then answers that a
    token is required, and no part of the value gets into a header, a message or a log.
    """
    variables = os.environ if environment is None else environment
    token = variables.get(TOKEN_ENV, "")
    if not token.strip() and (path := variables.get(TOKEN_FILE_ENV)):
        try:
            with open(path, encoding="utf-8") as file:
                token = file.read(_LENGTH_LIMIT)
        except (OSError, ValueError):
            return None
    token = token.strip()
    return token if _TOKEN.fullmatch(token) else None
