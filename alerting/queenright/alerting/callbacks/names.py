"""What people are called elsewhere, as it can be kept and shown here."""

from __future__ import annotations

from typing import Final

from queenright.instrumentation.redaction import redact

_LONGEST: Final = 100


def person(*names: str, otherwise: str) -> str:
    """
    Return the first name that has anything to read in it, without what moves a cursor or breaks a line.

    Args:
        names: What somebody is called, the best first.
        otherwise: In place of a name, if there is none.
    """
    for name in names:
        kept = " ".join("".join(c if c.isprintable() else " " for c in name).split())
        if kept:
            return redact(kept, _LONGEST)
    return otherwise
