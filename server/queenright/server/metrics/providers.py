"""What the service says of the fleet's calls of models, by provider and model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queenright.health.provider_traffic import ModelCall, ProviderHealth
from queenright.instrumentation import names
from queenright.instrumentation.limited import Limited

MODELS: Final = 50
"""Past so many models further ones are ``other``."""
_BUCKETS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


class ProviderMetrics:
    """
    Counts calls of models.

    Args:
        registry: Where it is registered.
        providers: Gives how each provider does now.
    """

    def __init__(
        self, registry: CollectorRegistry, providers: Callable[[], Iterable[ProviderHealth]]
    ) -> None:
        calls, took = names.PROVIDER_CALLS, names.PROVIDER_CALL_DURATION
        self._calls = Counter(calls.name, calls.help, calls.labels, registry=registry)
        self._took = Histogram(took.name, took.help, took.labels, buckets=_BUCKETS, registry=registry)
        self._limited = Limited(registry, (calls,))
        self._labels: dict[tuple[str, str], tuple[str, str]] = {}
        registry.register(_Limits(providers, self._labels))

    def count(self, call: ModelCall) -> None:
        """Count a call that ended."""
        labels = self._labels.get(call.key)
        if labels is None:
            labels = self._new(call.key)
        self._calls.labels(*labels, "error" if call.error else "ok").inc()
        if call.duration is not None and not call.error:
            self._took.labels(*labels).observe(call.duration)

    def _new(self, key: tuple[str, str]) -> tuple[str, str]:
        if len(self._labels) >= MODELS:
            other = self._limited.fold(names.PROVIDER_CALLS, *key)
            return (other, other)
        self._labels[key] = key
        # Born at 0: a counter that is first seen at 1 shows no increase, and the first would be invisible.
        for outcome in ("ok", "error"):
            self._calls.labels(*key, outcome)
        return key


class _Limits(Collector):
    """Until when which model is limited: read, not kept, as it ends by itself."""

    def __init__(
        self,
        providers: Callable[[], Iterable[ProviderHealth]],
        labels: dict[tuple[str, str], tuple[str, str]],
    ) -> None:
        self._providers, self._labels = providers, labels

    def describe(self) -> Iterable[Metric]:
        """Name the family without asking for providers, which registering would do."""
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        """Yield until when each model is limited; those that are not have no series."""
        family = self._family()
        for one in self._providers():
            if one.limited_until is not None and (one.provider, one.model) in self._labels:
                family.add_metric([one.provider, one.model], one.limited_until)
        yield family

    def _family(self) -> GaugeMetricFamily:
        metric = names.PROVIDER_LIMITED_UNTIL
        return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
