"""
Deduplicate spans. A client without a response retries its request, and each span must count once.

Otherwise a slow disk would turn a tool call into repeated calls, which look like a loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queenright.instrumentation.errors import QueenrightError

MIN_REMEMBERED_SPANS: Final = 100_000


class StillStoringError(QueenrightError):
    """Raised when a span arrives again while its first arrival is not yet durable."""

    def __init__(self) -> None:
        super().__init__("these spans are being stored; retry later")


class Duplicates:
    """The most recent spans, at least ``MIN_REMEMBERED_SPANS`` of them. Not thread-safe."""

    def __init__(self) -> None:
        self._stored_spans: set[bytes] = set()
        self._older_spans: set[bytes] = set()
        self._storing_spans: set[bytes] = set()

    def is_stored(self, span: bytes) -> bool:
        """
        Return whether a span is stored.

        Raises:
            StillStoringError: The span is being stored, and the outcome is not known yet.
        """
        if span in self._storing_spans:
            raise StillStoringError
        return span in self._stored_spans or span in self._older_spans

    def begin_storing(self, spans: Iterable[bytes]) -> None:
        """Mark the spans of one request as being stored."""
        self._storing_spans.update(spans)

    def finish_storing(self, spans: Iterable[bytes], *, is_stored: bool) -> None:
        """Record whether the spans were stored. Spans that were not stored may be retried."""
        self._storing_spans.difference_update(spans)
        if not is_stored:
            return
        self._stored_spans.update(spans)
        if len(self._stored_spans) >= MIN_REMEMBERED_SPANS:
            self._older_spans, self._stored_spans = self._stored_spans, set()
