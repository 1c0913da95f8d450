"""The token that the service knows a machine by: from the environment, or from a file that it names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

TOKEN_ENV: Final = "QUEENRIGHT_TOKEN"
TOKEN_FILE_ENV: Final = "QUEENRIGHT_TOKEN_FILE"

_LONGEST: Final = 4096
_WORDS: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")


def service_token(environment: Mapping[str, str] | None = None) -> str | None:
    """
    Return ``QUEENRIGHT_TOKEN``, or what the file ``QUEENRIGHT_TOKEN_FILE`` holds; None if there is neither.

    What is no token (several words, a file that cannot be read) is none: the service says that one is needed,
    and nothing of it gets into a header, a message or a log.
    """
    known = os.environ if environment is None else environment
    found = known.get(TOKEN_ENV, "")
    if not found.strip() and (file := known.get(TOKEN_FILE_ENV)):
        try:
            with open(file, encoding="utf-8") as opened:
                found = opened.read(_LONGEST)
        except (OSError, ValueError):
            return None
    found = found.strip()
    return found if _WORDS.fullmatch(found) else None
