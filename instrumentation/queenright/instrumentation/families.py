"""Create metrics from their names in ``names``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from queenright.instrumentation.names import MetricName


def counter(metric: MetricName, registry: CollectorRegistry) -> Counter:
    """Register a counter."""
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def gauge(metric: MetricName, registry: CollectorRegistry | None) -> Gauge:
    """Create a gauge, and register it if there is a registry."""
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def histogram(
    metric: MetricName,
    registry: CollectorRegistry,
    buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS,
) -> Histogram:
    """Register a histogram."""
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=buckets)


def make_gauge_family(metric: MetricName) -> GaugeMetricFamily:
    """Return an empty gauge family, for a custom collector."""
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


class LiveGauges(Collector):
    """
    Gauges read at each scrape, so that what no longer exists has no series.

    Args:
        read: Adds the samples to the gauges' empty families, one argument for each of ``metrics``.
    """

    def __init__(self, read: Callable[..., None], *metrics: MetricName) -> None:
        self._read, self._metrics = read, metrics

    def describe(self) -> Iterable[Metric]:
        """Return the empty families, so that registering reads nothing."""
        return [make_gauge_family(metric) for metric in self._metrics]

    def collect(self) -> Iterable[Metric]:
        """Return the families with their samples."""
        families = [make_gauge_family(metric) for metric in self._metrics]
        self._read(*families)
        return families
