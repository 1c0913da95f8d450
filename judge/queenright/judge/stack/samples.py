"""Samples that no worker can have: they are left out, counted, and said once, and stop nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable

from queenright.instrumentation.redaction import redact
from queenright.judge.stack.prometheus import Series

_log = logging.getLogger(__name__)

_MOST = 2.0**53
_NAME_LIMIT = 100
_MOST_SAID = 100


class Samples:
    """Lets through what can be used, and keeps count of the rest."""

    def __init__(self) -> None:
        self.skipped = 0
        """How many samples were left out, in all."""
        self._said: Counter[tuple[str, str]] = Counter()

    def usable(
        self, told: Iterable[Series], known: Collection[str] | None = None
    ) -> tuple[list[Series], list[Series]]:
        """
        Part an answer into what can be used and what is no number, but of a metric that is known.

        Args:
            told: Series with one value each.
            known: Names of metrics; others are left out. None: the answer has no names.
        """
        good, doubtful = [], []
        for series in told:
            name = series.labels.get("__name__", "")
            if known is not None and name not in known:
                self._skip(name, "is a metric that is not known here")
            elif not 0 <= series.value <= _MOST:
                self._skip(name, "is no number that it can have")
                doubtful.append(series)
            else:
                good.append(series)
        return good, doubtful

    def _skip(self, name: str, fault: str) -> None:
        self.skipped += 1
        shown = redact(name, _NAME_LIMIT) or "a value without a name"
        if (shown, fault) not in self._said and len(self._said) < _MOST_SAID:
            self._said[shown, fault] += 1
            _log.warning("skipped, now and wherever it comes again: %s %s", shown, fault)
