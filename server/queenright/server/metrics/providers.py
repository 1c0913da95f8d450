"""Metrics of the fleet's model calls, by provider and model."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from queenright.health.vitals.provider_traffic import ModelCall, ProviderTraffic
from queenright.instrumentation import names
from queenright.instrumentation.families import LiveGauges, counter, histogram
from queenright.instrumentation.label_limit import LimitCounter
from queenright.runtime.events import Clock

MAX_MODELS: Final = 50
"""Maximum number of model labels. Further models have the label ``other``."""
_DURATION_BUCKETS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


class ProviderMetrics:
    """
    Counts model calls.

    Args:
        registry: The registry.
        providers: The health of providers, from their recent calls.
        clock: Seconds since the epoch.
    """

    def __init__(self, registry: CollectorRegistry, providers: ProviderTraffic, clock: Clock) -> None:
        self._providers, self._clock = providers, clock
        self._calls = counter(names.PROVIDER_CALLS, registry)
        self._duration = histogram(names.PROVIDER_CALL_DURATION, registry, _DURATION_BUCKETS)
        self._limit_counter = LimitCounter(registry, (names.PROVIDER_CALLS,))
        self._labels: dict[tuple[str, str], tuple[str, str]] = {}
        registry.register(LiveGauges(self._read_limits, names.PROVIDER_LIMITED_UNTIL))

    def count(self, call: ModelCall) -> None:
        """Count a finished call."""
        labels = self._labels.get(call.key)
        if labels is None:
            labels = self._add_labels(call.key)
        self._calls.labels(*labels, "error" if call.error else "ok").inc()
        if call.duration is not None and not call.error:
            self._duration.labels(*labels).observe(call.duration)

    def _add_labels(self, key: tuple[str, str]) -> tuple[str, str]:
        if len(self._labels) >= MAX_MODELS:
            other = self._limit_counter.fold(names.PROVIDER_CALLS, *key)
            return (other, other)
        self._labels[key] = key
        # Initialized at 0: a counter that first appears at 1 shows no increase.
        for outcome in ("ok", "error"):
            self._calls.labels(*key, outcome)
        return key

    def _read_limits(self, limited_until: GaugeMetricFamily) -> None:
        """Add the end of each model's rate limit. Models without a rate limit have no series."""
        for provider in self._providers.providers(self._clock()):
            if provider.limited_until is not None and (provider.provider, provider.model) in self._labels:
                limited_until.add_metric([provider.provider, provider.model], provider.limited_until)
