"""Label values that were folded into ``other``: each counted once, by the metric that lost a name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter

from queenright.instrumentation import names
from queenright.instrumentation.names import MetricName

REMEMBERED: Final = 10_000
"""So many folded values are known not to be new; past that, old ones are counted once more."""


class Limited:
    """
    The counter ``queenright_series_limited_total``.

    Args:
        registry: Where it is registered; who asks for it there again shares it.
        metrics: The metrics that have bounded labels; they begin at 0.
    """

    _by_registry: Final[WeakKeyDictionary[CollectorRegistry, Counter]] = WeakKeyDictionary()

    def __init__(self, registry: CollectorRegistry, metrics: Iterable[MetricName]) -> None:
        name = names.SERIES_LIMITED
        counter = self._by_registry.get(registry)
        if counter is None:
            counter = Counter(name.name, name.help, name.labels, registry=registry)
            self._by_registry[registry] = counter
        # Born at 0: a counter that is first seen at 1 shows no increase, and the first would be invisible.
        self._counts = {metric: counter.labels(metric.name) for metric in metrics}
        self._seen: set[int] = set()

    def fold(self, metric: MetricName, *value: str) -> str:
        """
        Return ``other``, and count ``value`` if it was not folded before.

        Args:
            metric: One of those that were given at the start.
            value: What is folded, with the labels that it belongs to.
        """
        # Hashes: a stream of ever new and long names must not fill the memory.
        key = hash((metric.name, value))
        if key not in self._seen:
            if len(self._seen) >= REMEMBERED:
                self._seen.clear()
            self._seen.add(key)
            self._counts[metric].inc()
        return names.OTHER
