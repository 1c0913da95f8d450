"""Fold excess label values into ``other`` and count each folded value once, per metric."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter

from queenright.instrumentation import names
from queenright.instrumentation.families import counter
from queenright.instrumentation.names import MetricName

MAX_KNOWN_VALUES: Final = 10_000
"""Number of folded values remembered; beyond it, old values are counted again."""


class LimitCounter:
    """
    The counter ``queenright_series_limited_total``.

    Args:
        registry: The registry; all limiters of one registry share the counter.
        metrics: The metrics that have bounded labels; their counts start at 0.
    """

    _by_registry: Final[WeakKeyDictionary[CollectorRegistry, Counter]] = WeakKeyDictionary()

    def __init__(self, registry: CollectorRegistry, metrics: Iterable[MetricName]) -> None:
        total = self._by_registry.get(registry)
        if total is None:
            total = self._by_registry[registry] = counter(names.SERIES_LIMITED, registry)
        # Start at 0: Prometheus sees no increase if the first sample is 1.
        self._counts = {metric: total.labels(metric.name) for metric in metrics}
        self._seen_hashes: set[int] = set()

    def fold(self, metric: MetricName, *value: str) -> str:
        """
        Return ``other``, and count ``value`` if it was not folded before.

        Args:
            metric: One of the metrics passed to the constructor.
            value: The folded label value, with the labels that qualify it.
        """
        # Hashes, so that a stream of long new names cannot fill the memory.
        key = hash((metric.name, value))
        if key not in self._seen_hashes:
            if len(self._seen_hashes) >= MAX_KNOWN_VALUES:
                self._seen_hashes.clear()
            self._seen_hashes.add(key)
            self._counts[metric].inc()
        return names.OTHER
