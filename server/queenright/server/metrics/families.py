"""Create metrics from their names in `queenright.instrumentation.names`."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from queenright.instrumentation.names import MetricName


def counter(metric: MetricName, registry: CollectorRegistry) -> Counter:
    """Register a counter."""
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def histogram(
    metric: MetricName,
    registry: CollectorRegistry,
    buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS,
) -> Histogram:
    """Register a histogram."""
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=buckets)


def gauge_family(metric: MetricName) -> GaugeMetricFamily:
    """Return an empty gauge family, for a custom collector."""
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
