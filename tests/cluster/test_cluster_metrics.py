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
class OwnedPartition:
    number: int
    registry: CollectorRegistry | None
    backlog: int | None = None


def make_partition_registry(agents: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("queenright_agents", "Agents.", ["state"], registry=registry).labels("stuck").set(agents)
    dropped = Counter("queenright_telemetry_dropped", "Dropped.", ["signal"], registry=registry)
    dropped.labels("traces").inc(agents)
    delay = Histogram("queenright_detection_delay_seconds", "Delay.", registry=registry)
    delay.observe(1.5, {"trace_id": "a" * 32})
    return registry


async def read_exposed(
    partitions: list[OwnedPartition], content_type: str
) -> dict[tuple[str, Labels], float]:
    """Return the values by name and labels; each series and each family must appear once."""
    own = CollectorRegistry()
    own.register(ClusterMetrics(members=2, is_stream_available=True, partitions=partitions))
    Counter("queenright_telemetry_dropped", "Dropped.", ["signal"], registry=own).labels("traces").inc(5)
    page = await Exposition(lambda: collect_process(own, partitions), merge_families).render(content_type)
    families = list((parse_openmetrics if content_type == OPENMETRICS else parse_text)(page.decode()))
    assert len(families) == len({family.name for family in families})
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


@pytest.mark.parametrize("content_type", [PROMETHEUS_TEXT, OPENMETRICS])
async def test_series_of_several_partitions_have_their_number(content_type: str) -> None:
    partitions = [
        OwnedPartition(0, make_partition_registry(3), 7),
        OwnedPartition(1, None),
        OwnedPartition(2, make_partition_registry(4)),
    ]

    found = await read_exposed(partitions, content_type)

    assert {
        labels: value for (name, labels), value in found.items() if name == "queenright_cluster_owner"
    } == {(("partition", "0"),): 1, (("partition", "1"),): 0, (("partition", "2"),): 1}
    assert found["queenright_cluster_backlog", (("partition", "0"),)] == 7
    assert found["queenright_cluster_members", ()] == 2
    for number, agents in ((0, 3), (2, 4)):
        label = ("partition", str(number))
        assert found["queenright_agents", (label, ("state", "stuck"))] == agents
        assert found["queenright_telemetry_dropped_total", (label, ("signal", "traces"))] == agents
        assert found["queenright_detection_delay_seconds_count", (label,)] == 1
    assert found["queenright_telemetry_dropped_total", (("signal", "traces"),)] == 5


@pytest.mark.parametrize("content_type", [PROMETHEUS_TEXT, OPENMETRICS])
async def test_series_of_the_only_partition_have_no_number(content_type: str) -> None:
    """Except for those of counters that the process also has."""
    found = await read_exposed([OwnedPartition(0, make_partition_registry(3), 7)], content_type)

    numbered = {name for name, labels in found if ("partition", "0") in labels}
    assert numbered - {"queenright_telemetry_dropped_created"} == {"queenright_telemetry_dropped_total"}
    assert found["queenright_cluster_owner", ()] == 1
    assert found["queenright_cluster_backlog", ()] == 7
    assert found["queenright_agents", (("state", "stuck"),)] == 3
    assert found["queenright_telemetry_dropped_total", (("signal", "traces"),)] == 5
    assert found["queenright_telemetry_dropped_total", (("partition", "0"), ("signal", "traces"))] == 3


async def test_increase_of_a_counter_is_right_when_ownership_is_lost_and_gained() -> None:
    partition, increase = OwnedPartition(0, make_partition_registry(3)), 0.0
    before: dict[tuple[str, Labels], float] = {}
    for registry in (make_partition_registry(3), None, make_partition_registry(1), None):
        partition.registry = registry
        page = await read_exposed([partition], PROMETHEUS_TEXT)
        counted = {
            key: value for key, value in page.items() if key[0] == "queenright_telemetry_dropped_total"
        }
        if before:
            # As in Prometheus: a series whose value falls has restarted from 0.
            increase += sum(
                value - (before[key] if value >= before[key] else 0.0) for key, value in counted.items()
            )
        before |= counted

    assert increase == 1


async def test_standby_exposes_only_the_cluster_metrics() -> None:
    found = await read_exposed([OwnedPartition(0, None)], PROMETHEUS_TEXT)

    names = {name for name, _ in found if not name.startswith("queenright_telemetry_dropped")}
    assert names == {"queenright_cluster_owner", "queenright_cluster_members", "queenright_cluster_stream_up"}
