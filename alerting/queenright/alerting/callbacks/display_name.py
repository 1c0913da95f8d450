"""Make names of people from external services safe to display."""

from __future__ import annotations

from typing import Final

from queenright.instrumentation.redaction import redact

_LENGTH_LIMIT: Final = 100


def display_name(*names: str, fallback: str) -> str:
    """
    Return the first non-blank name, without control characters and line breaks, with secrets masked.

    Args:
        fallback: Returned if all names are blank.
    """
    for name in names:
        text = " ".join("".join(c if c.isprintable() else " " for c in name).split())
        if text:
            return redact(text, _LENGTH_LIMIT)
    return fallback
