"""
Rate limit for repeated log records: one of each kind in 30 seconds.

A full disk makes every operation fail, and every operation is retried. Without a limit the same lines would
repeat many times a second and hide the first one.
"""

from __future__ import annotations

import copy
import logging
import re
from dataclasses import dataclass
from typing import Final

from queenright.instrumentation.errors import QueenrightError

INTERVAL_SECONDS: Final = 30.0
"""Each kind of record is logged at most once in this time."""

_MAX_KINDS: Final = 1_000
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")


@dataclass(slots=True)
class _LastRecord:
    at: float
    suppressed_count: int = 0


class RateLimiter:
    """
    Lets one warning or error of each kind pass per interval, and appends the number of suppressed ones.

    Records are of one kind if the same line of code logs them for the same cause: the exception, or else the
    last argument of the message. Numbers in the cause are ignored.
    """

    def __init__(self) -> None:
        self._last_records: dict[tuple[str, ...], _LastRecord] = {}

    def filter_record(self, record: logging.LogRecord) -> logging.LogRecord | None:
        """Return the record to log, which may be a changed copy; None to suppress it."""
        if record.levelno < logging.WARNING:
            return record
        kind = _get_kind(record)
        previous = self._last_records.get(kind)
        if previous is not None and 0 <= record.created - previous.at < INTERVAL_SECONDS:
            previous.suppressed_count += 1
            return None
        if previous is None and len(self._last_records) >= _MAX_KINDS:
            del self._last_records[min(self._last_records, key=lambda key: self._last_records[key].at)]
        self._last_records[kind] = _LastRecord(record.created)
        return _add_suppressed_count(record, previous)


class RateLimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic only in typeshed
    """Writes records to stderr, limited by a ``RateLimiter``."""

    def __init__(self) -> None:
        super().__init__()
        self._limiter = RateLimiter()

    def emit(self, record: logging.LogRecord) -> None:
        """Write or suppress a record."""
        if (limited_record := self._limiter.filter_record(record)) is not None:
            super().emit(limited_record)


def _get_kind(record: logging.LogRecord) -> tuple[str, ...]:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        cause = f"{type(error).__name__}: {error}"
    else:
        cause = str(record.args[-1]) if isinstance(record.args, tuple) and record.args else ""
    return record.name, str(record.msg), _NUMBER.sub("#", cause)


def _add_suppressed_count(record: logging.LogRecord, previous: _LastRecord | None) -> logging.LogRecord:
    """Return a record with the number of suppressed ones, without the traceback of a `QueenrightError`."""
    error = record.exc_info[1] if record.exc_info else None
    is_expected = isinstance(error, QueenrightError)
    if not is_expected and (previous is None or not previous.suppressed_count):
        return record
    result = copy.copy(record)
    text = record.getMessage()
    if is_expected:
        text = f"{text}: {error}"
        result.exc_info = result.exc_text = None
    if previous is not None and previous.suppressed_count:
        seconds = record.created - previous.at
        text += f" (and {previous.suppressed_count} more like this in the {seconds:.0f} s before)"
    result.msg, result.args = text, ()
    return result
