"""
What a service says of itself, while something does not work: one line of each kind, not one a second.

A full disk fails whatever is tried, and everything is tried again: each failure would be the same lines, over
and over, in which the first is lost.
"""

from __future__ import annotations

import copy
import logging
import re
from dataclasses import dataclass
from typing import Final

from queenright.instrumentation.errors import QueenrightError

EVERY: Final = 30.0
"""Seconds in which a kind of failure is said once."""

_KINDS: Final = 1_000
_VARYING: Final = re.compile(r"\d+(\.\d+)?")


@dataclass(slots=True)
class _Said:
    at: float
    more: int = 0


class Once:
    """
    Lets each kind of warning or error pass once in ``EVERY`` seconds, with how many there were meanwhile.

    Of a kind is what the same line of code says for the same cause: the exception, or else what the message
    ends with. Numbers in it do not count.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, ...], _Said] = {}

    def passes(self, record: logging.LogRecord) -> logging.LogRecord | None:
        """Return what is to be said now: the record, or another in its place; None for nothing."""
        if record.levelno < logging.WARNING:
            return record
        kind = _kind(record)
        known = self._said.get(kind)
        if known is not None and 0 <= record.created - known.at < EVERY:
            known.more += 1
            return None
        if known is None and len(self._said) >= _KINDS:
            del self._said[min(self._said, key=lambda one: self._said[one].at)]
        self._said[kind] = _Said(record.created)
        return _in_words(record, known)


class OnceHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic for type checkers alone
    """Writes to standard error what ``Once`` lets pass."""

    def __init__(self) -> None:
        super().__init__()
        self._once = Once()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it."""
        if (said := self._once.passes(record)) is not None:
            super().emit(said)


def _kind(record: logging.LogRecord) -> tuple[str, ...]:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        cause = f"{type(error).__name__}: {error}"
    else:
        cause = str(record.args[-1]) if isinstance(record.args, tuple) and record.args else ""
    return record.name, str(record.msg), _VARYING.sub("#", cause)


def _in_words(record: logging.LogRecord, before: _Said | None) -> logging.LogRecord:
    """Return a record without the stack where the error says it all, and with what was not said before it."""
    error = record.exc_info[1] if record.exc_info else None
    expected = isinstance(error, QueenrightError)
    if not expected and (before is None or not before.more):
        return record
    said = copy.copy(record)
    text = record.getMessage()
    if expected:
        text = f"{text}: {error}"
        said.exc_info = said.exc_text = None
    if before is not None and before.more:
        text += f" (and {before.more} more like this in the {record.created - before.at:.0f} s before)"
    said.msg, said.args = text, ()
    return said
