"""The metrics of a process of a cluster: its own, and those of the partitions that it owns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from queenright.instrumentation import names


class PartitionMetrics(Protocol):
    """The metrics of a partition, in one process."""

    number: int
    backlog: int | None
    """Messages in the partition's stream; None if unknown, or if this process is not the owner."""

    @property
    def registry(self) -> CollectorRegistry | None:
        """The registry of the partition's service; None if this process is not the owner."""


@dataclass(slots=True, eq=False)
class ClusterMetrics(Collector):
    """The metrics of the cluster. Every process exports them."""

    members: int = 0
    is_stream_available: bool = False
    partitions: Sequence[PartitionMetrics] = field(default=())

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of the cluster."""
        yield _make_gauge(names.CLUSTER_MEMBERS, self.members)
        yield _make_gauge(names.CLUSTER_STREAM_UP, self.is_stream_available)
        has_partition_label = len(self.partitions) > 1
        owner = _make_gauge(names.CLUSTER_OWNER, has_partition_label=has_partition_label)
        backlog = _make_gauge(names.CLUSTER_BACKLOG, has_partition_label=has_partition_label)
        for partition in self.partitions:
            labels = [str(partition.number)] if has_partition_label else []
            owner.add_metric(labels, float(partition.registry is not None))
            if partition.backlog is not None:
                backlog.add_metric(labels, float(partition.backlog))
        yield owner
        if backlog.samples:
            yield backlog


def collect_process(
    own_registry: CollectorRegistry, partitions: Sequence[PartitionMetrics]
) -> Iterator[Metric]:
    """
    Yield the metric families of a process and of its partitions. A name can occur more than once.

    Args:
        own_registry: The metrics of the process.
        partitions: All partitions. If there are several, their series get the partition label. With
            one partition, only series whose name the process also has get it. Otherwise the sum of both
            would fall when the partition's service ends.
    """
    own_families = {family.name: family for family in own_registry.collect()}
    for partition in partitions:
        if partition.registry is None:
            continue
        for family in partition.registry.collect():
            if len(partitions) > 1 or family.name in own_families:
                label = {names.PARTITION_LABEL: str(partition.number)}
                family.samples = [
                    sample._replace(labels={**sample.labels, **label}) for sample in family.samples
                ]
            yield family
    yield from own_families.values()


def merge_families(families: Iterable[Metric]) -> Iterator[Metric]:
    """Merge families with the same name, because the exposition formats allow each name once."""
    families_by_name: dict[str, Metric] = {}
    for family in families:
        if (known_family := families_by_name.setdefault(family.name, family)) is not family:
            known_family.samples += family.samples
    yield from families_by_name.values()


def _make_gauge(
    metric: names.MetricName, value: float | None = None, *, has_partition_label: bool = False
) -> GaugeMetricFamily:
    labels = [names.PARTITION_LABEL] if has_partition_label else None
    return GaugeMetricFamily(
        metric.name, metric.help, value=None if value is None else float(value), labels=labels
    )
