"""The Cluster dashboard: the processes of a cluster."""

from __future__ import annotations

from queenright.grafana.export import RED, Thresholds
from queenright.instrumentation import names
from tools.dashboards import panels
from tools.dashboards.panels import Query, Row
from tools.dashboards.promql import highest_by
from tools.dashboards.states import GREEN

TITLE = "Cluster"
QUESTION = "Which processes watch the workers, and does NATS accept telemetry? No data without a cluster."


def rows(at: Thresholds) -> list[Row]:
    """Return the panels; none has a line."""
    return [
        Row(
            "Cluster",
            [
                panels.numbers(
                    "Running processes",
                    "Running processes of the cluster.",
                    "none",
                    Query(highest_by("job", names.CLUSTER_MEMBERS), "{{job}}"),
                    size=(6, 8),
                ),
                panels.state_history(
                    "Owners",
                    "The process that owns each partition. Without a bar, no process watches its workers.",
                    Query(
                        f"{highest_by('instance, partition', names.CLUSTER_OWNER)} == 1",
                        "{{instance}} {{partition}}",
                    ),
                    words=[(1, "owner", GREEN)],
                    size=(18, 8),
                ),
                panels.state_history(
                    "NATS",
                    "Whether each process can publish telemetry to NATS. If it cannot, it refuses telemetry.",
                    Query(highest_by("instance", names.CLUSTER_STREAM_UP), "{{instance}}"),
                    words=[(0, "refuses", RED), (1, "accepts", GREEN)],
                    size=(12, 8),
                ),
                panels.time_series(
                    "Telemetry to store",
                    "Messages in NATS that were acknowledged but are not stored yet, by owner. After a "
                    "takeover, the owner is another instance.",
                    "none",
                    Query(
                        highest_by("instance, partition", names.CLUSTER_BACKLOG),
                        "{{instance}} {{partition}}",
                    ),
                    size=(12, 8),
                ),
            ],
        )
    ]
