"""The metrics of a process that owns several partitions."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from queenright.server.cluster.metrics import ClusterMetrics, collect_process, merge_families
from queenright.server.metrics.metrics import OPENMETRICS, PROMETHEUS_TEXT, Exposition

Labels = tuple[tuple[str, str], ...]


@dataclass
class PartitionMetrics:
    number: int
    registry: CollectorRegistry | None
    backlog: int | None = None


def make_partition_registry(agents: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("queenright_agents", "Agents.", ["state"], registry=registry).labels("stuck").set(agents)
    dropped_counter = Counter("queenright_telemetry_dropped", "Dropped.", ["signal"], registry=registry)
    dropped_counter.labels("traces").inc(agents)
    delay = Histogram("queenright_detection_delay_seconds", "Delay.", registry=registry)
    delay.observe(1.5, {"trace_id": "a" * 32})
    return registry


async def read_exposed(
    partitions: list[PartitionMetrics], content_type: str
) -> dict[tuple[str, Labels], float]:
    """Return the sample values by name and labels. Each series and each family must appear only once."""
    process_registry = CollectorRegistry()
    process_registry.register(ClusterMetrics(members=2, is_stream_available=True, partitions=partitions))
    Counter("queenright_telemetry_dropped", "Dropped.", ["signal"], registry=process_registry).labels(
        "traces"
    ).inc(5)
    page = await Exposition(lambda: collect_process(process_registry, partitions), merge_families).render(
        content_type
    )
    families = list((parse_openmetrics if content_type == OPENMETRICS else parse_text)(page.decode()))
    assert len(families) == len({family.name for family in families})
    samples = [sample for family in families for sample in family.samples]
    values = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(values) == len(samples)
    return values


@pytest.mark.parametrize("content_type", [PROMETHEUS_TEXT, OPENMETRICS])
async def test_series_of_several_partitions_have_the_partition_label(content_type: str) -> None:
    partitions = [
        PartitionMetrics(0, make_partition_registry(3), 7),
        PartitionMetrics(1, None),
        PartitionMetrics(2, make_partition_registry(4)),
    ]

    values = await read_exposed(partitions, content_type)

    assert {
        labels: value for (name, labels), value in values.items() if name == "queenright_cluster_owner"
    } == {(("partition", "0"),): 1, (("partition", "1"),): 0, (("partition", "2"),): 1}
    assert values["queenright_cluster_backlog", (("partition", "0"),)] == 7
    assert values["queenright_cluster_members", ()] == 2
    for number, agents in ((0, 3), (2, 4)):
        label = ("partition", str(number))
        assert values["queenright_agents", (label, ("state", "stuck"))] == agents
        assert values["queenright_telemetry_dropped_total", (label, ("signal", "traces"))] == agents
        assert values["queenright_detection_delay_seconds_count", (label,)] == 1
    assert values["queenright_telemetry_dropped_total", (("signal", "traces"),)] == 5


@pytest.mark.parametrize("content_type", [PROMETHEUS_TEXT, OPENMETRICS])
async def test_series_of_a_single_partition_have_no_partition_label(content_type: str) -> None:
    """Counters that the process also has keep the label."""
    values = await read_exposed([PartitionMetrics(0, make_partition_registry(3), 7)], content_type)

    labelled_names = {name for name, labels in values if ("partition", "0") in labels}
    assert labelled_names - {"queenright_telemetry_dropped_created"} == {"queenright_telemetry_dropped_total"}
    assert values["queenright_cluster_owner", ()] == 1
    assert values["queenright_cluster_backlog", ()] == 7
    assert values["queenright_agents", (("state", "stuck"),)] == 3
    assert values["queenright_telemetry_dropped_total", (("signal", "traces"),)] == 5
    assert values["queenright_telemetry_dropped_total", (("partition", "0"), ("signal", "traces"))] == 3


async def test_increase_of_a_counter_is_right_when_a_partition_moves() -> None:
    partition, increase = PartitionMetrics(0, make_partition_registry(3)), 0.0
    previous_counts: dict[tuple[str, Labels], float] = {}
    for registry in (make_partition_registry(3), None, make_partition_registry(1), None):
        partition.registry = registry
        page = await read_exposed([partition], PROMETHEUS_TEXT)
        counts = {key: value for key, value in page.items() if key[0] == "queenright_telemetry_dropped_total"}
        if previous_counts:
            # Like Prometheus, take a series whose value falls as restarted from 0.
            increase += sum(
                value - (previous_counts[key] if value >= previous_counts[key] else 0.0)
                for key, value in counts.items()
            )
        previous_counts |= counts

    assert increase == 1


async def test_standby_exposes_only_the_cluster_metrics() -> None:
    values = await read_exposed([PartitionMetrics(0, None)], PROMETHEUS_TEXT)

    names = {name for name, _ in values if not name.startswith("queenright_telemetry_dropped")}
    assert names == {"queenright_cluster_owner", "queenright_cluster_members", "queenright_cluster_stream_up"}
