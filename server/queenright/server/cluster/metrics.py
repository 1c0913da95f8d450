"""The metrics of a member of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from queenright.instrumentation import names


@dataclass(slots=True, eq=False)
class ClusterMetrics(Collector):
    """What the member knows; every member exports it, the owner beside the metrics of the service."""

    is_owner: bool = False
    members: int = 0
    is_stream_available: bool = False
    backlog: int | None = None
    """Messages in the telemetry stream; None while unknown, or if this member is not the owner."""

    def collect(self) -> Iterator[Metric]:
        """Implement ``Collector``."""
        yield _gauge(names.CLUSTER_OWNER, self.is_owner)
        yield _gauge(names.CLUSTER_MEMBERS, self.members)
        yield _gauge(names.CLUSTER_STREAM_UP, self.is_stream_available)
        if self.backlog is not None:
            yield _gauge(names.CLUSTER_BACKLOG, self.backlog)


def _gauge(metric: names.MetricName, value: float) -> Metric:
    return GaugeMetricFamily(metric.name, metric.help, value=float(value))
