"""Identity: who a worker is, which run this is, which life of its process."""

from __future__ import annotations

import os
import time
from typing import Final

from queenright.instrumentation.errors import QueenrightError

_SESSION_LENGTH: Final = 200


class SessionIdRefused(QueenrightError, ValueError):
    """Raised for a session id that could not be the name of a directory below the storage."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"Session id {session_id[:_SESSION_LENGTH]!r} is refused: it must be 1 to {_SESSION_LENGTH} "
            "printable characters without '/', '\\' or '..'; leave session_id out to have one made."
        )
        self.session_id = session_id


def new_id() -> str:
    """Return a UUIDv7 (RFC 9562): unique, and sorts by the time it was made."""
    value = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def check_session_id(session_id: str) -> str:
    """
    Return ``session_id`` if it can be the name of a directory.

    Raises:
        SessionIdRefused: it is empty, too long, not printable, or has a path separator or ``..`` in it.
    """
    refused = (
        not session_id
        or len(session_id) > _SESSION_LENGTH
        or ".." in session_id
        or session_id == "."
        or not session_id.isprintable()
        or any(separator in session_id for separator in "/\\")
    )
    if refused:
        raise SessionIdRefused(session_id)
    return session_id
