"""
Spans that arrive twice: a client that saw no answer sends its request again, and a span must count once.

Without this a slow disk would turn one tool call into a repeat of itself, which is what a loop looks like.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queenright.instrumentation.errors import QueenrightError

WINDOW: Final = 100_000


class StillStoringError(QueenrightError):
    """Raised when a span arrives again while its first arrival is not yet durable."""

    def __init__(self) -> None:
        super().__init__("these spans are being stored right now; send them again later")


class Duplicates:
    """The spans of the recent past, at least ``window`` of them. For one thread."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._stored: set[bytes] = set()
        self._older: set[bytes] = set()
        self._storing: set[bytes] = set()

    def is_stored(self, span: bytes) -> bool:
        """
        Say whether a span was stored before.

        Raises:
            StillStoringError: It is being stored, and whether it will be is not known yet.
        """
        if span in self._storing:
            raise StillStoringError
        return span in self._stored or span in self._older

    def begin_storing(self, spans: Iterable[bytes]) -> None:
        """Note that the spans of one request are on their way to the log."""
        self._storing.update(spans)

    def finish_storing(self, spans: Iterable[bytes], *, stored: bool) -> None:
        """Note how that ended; spans that were not stored may come again."""
        self._storing.difference_update(spans)
        if not stored:
            return
        self._stored.update(spans)
        if len(self._stored) >= self._window:
            self._older, self._stored = self._stored, set()
