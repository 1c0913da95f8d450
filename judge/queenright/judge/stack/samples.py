"""Skip invalid samples. They are counted, and each fault is logged once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from queenright.instrumentation.redaction import redact
from queenright.judge.stack.prometheus import Series

_log = logging.getLogger(__name__)

_MAX_VALUE = 2.0**53
_NAME_LIMIT = 100
_MAX_LOGGED = 100


class Samples:
    """Selects valid samples, and counts the skipped samples."""

    def __init__(self) -> None:
        self.skipped_count = 0
        self._log_keys: set[tuple[str, str]] = set()

    def select_valid(
        self, answer: Iterable[Series], known_names: Collection[str] | None = None
    ) -> tuple[list[Series], list[Series]]:
        """
        Return the valid series in an answer, and the series of known metrics with an invalid value.

        Args:
            answer: The series, with one value each.
            known_names: The names of known metrics; others are skipped. None if the answer has no metric
                names.
        """
        valid, invalid = [], []
        for series in answer:
            name = series.labels.get("__name__", "")
            if known_names is not None and name not in known_names:
                self._skip(name, "is an unknown metric")
            elif not 0 <= series.value <= _MAX_VALUE:
                self._skip(name, "has an invalid value")
                invalid.append(series)
            else:
                valid.append(series)
        return valid, invalid

    def _skip(self, name: str, fault: str) -> None:
        self.skipped_count += 1
        label = redact(name, _NAME_LIMIT) or "a value without a name"
        if (label, fault) not in self._log_keys and len(self._log_keys) < _MAX_LOGGED:
            self._log_keys.add((label, fault))
            _log.warning("skipping samples, logged once: %s %s", label, fault)
