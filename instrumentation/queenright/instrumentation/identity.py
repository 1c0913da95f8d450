"""
Functions that generate ids, and validate names and session ids.

``worker`` decides when an incarnation begins.
"""

from __future__ import annotations

import os
import re
import time
from hashlib import blake2b
from typing import Final

from queenright.instrumentation.errors import InvalidValueError
from queenright.instrumentation.redaction import mask_name

NAME_LIMIT: Final = 200
"""Maximum length of a name, in characters."""

_MAX_SESSION_ID_LENGTH: Final = 200
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
_ESCAPE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
)
"""Terminal escape sequences, which are removed as a whole."""
_INVISIBLE: Final = re.compile(
    r"[\u00ad\u061c\u180e\u200b\u200e\u200f\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0001-\U000e007f]+"
)
"""Invisible characters that would make two different names look the same."""
_BLANK: Final = re.compile(r"[\s.\u200c\u200d\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\ufe00-\ufe0f\uffa0]+")


_RANDOM_BATCH: Final = 200
_random_parts: Final[list[bytes]] = []
"""Unused random parts of ids. A forked process must not share them with its parent."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random_parts.clear)


class InvalidSessionIdError(InvalidValueError, ValueError):
    """Raised for a session id that is not usable as a directory name."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"Session id {session_id[:_MAX_SESSION_ID_LENGTH]!r} is refused: use 1 to "
            f"{_MAX_SESSION_ID_LENGTH} printable characters without '/', '\\' or '..', or leave "
            "session_id out to generate one."
        )
        self.session_id = session_id


def new_id() -> str:
    """Return a UUIDv7 (RFC 9562), which sorts by creation time."""
    try:
        random_bits = _random_parts.pop()
    except IndexError:
        # One system call for many ids, because each event needs one.
        batch = os.urandom(10 * _RANDOM_BATCH)
        _random_parts.extend(batch[at : at + 10] for at in range(0, len(batch), 10))
        random_bits = os.urandom(10)
    value = (int(time.time() * 1000) << 80) | int.from_bytes(random_bits, "big")
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def clean_name(text: str, limit: int = NAME_LIMIT) -> str:
    """
    Return a name that is safe as a label, in a log line and on a page.

    Control characters are replaced by spaces and secrets are masked (``mask_name``). A name longer than
    ``limit`` is cut and ends in a hash of the whole name, so that different names stay different. Blank
    names, ``.`` and ``..`` (which have a meaning in URLs) become empty. Workers and the service both call
    this, so that an agent has the same name everywhere.
    """
    if not text.isprintable():
        text = _CONTROL.sub(" ", _INVISIBLE.sub("", _ESCAPE.sub("", text)))
    text = text.strip()
    if _is_blank(text):
        return ""
    text = mask_name(text)
    if len(text) <= limit:
        return text
    return f"{text[: limit - 17]}~{blake2b(text.encode(), digest_size=8).hexdigest()}"


def _is_blank(text: str) -> bool:
    # Fast path: the first letter decides for nearly every name.
    if not text or (text[0].isascii() and text[0] != "."):
        return False
    return text in (".", "..") or (not text.isascii() and _BLANK.fullmatch(text) is not None)


def check_session_id(session_id: str) -> str:
    """
    Return ``session_id`` with secrets masked, if it is usable as a directory name.

    Raises:
        InvalidSessionIdError: The id is empty, too long, not printable, or has a path separator or ``..``.
    """
    is_invalid = (
        not session_id
        or len(session_id) > _MAX_SESSION_ID_LENGTH
        or ".." in session_id
        or session_id == "."
        or not session_id.isprintable()
        or any(separator in session_id for separator in "/\\")
    )
    if is_invalid:
        raise InvalidSessionIdError(session_id)
    return mask_name(session_id)
