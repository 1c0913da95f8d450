"""Recorded series that the dashboards read: names and labels, as in the rule files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded series per target, which keeps ``job`` and ``instance``."""

    name: str
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class OverAll(Recorded):
    """A recorded series over all targets, without ``job`` and ``instance``."""


LAST_HEARTBEAT: Final = Recorded(
    "agent_instance:queenright_worker_last_heartbeat_timestamp_seconds:last", ("agent",)
)
"""The last heartbeat of a worker, kept for an hour after its process was killed."""
LAST_ACTIVITY: Final = Recorded(
    "agent_instance:queenright_worker_last_activity_timestamp_seconds:last", ("agent",)
)
TOOL_ERRORS: Final = Recorded("agent_instance:queenright_worker_tool_errors:ratio_rate5m", ("agent",))
IN_TROUBLE: Final = OverAll("cluster:queenright_agents_unhealthy:ratio")
DETECTION_P99: Final = OverAll("cluster:queenright_detection_delay_seconds:p99_5m")
BAD_STEPS: Final = "cluster:queenright_worker_bad_steps:ratio_rate{window}"
SLOW_INTERVENTIONS: Final = "cluster:queenright_slow_interventions:ratio_rate{window}"


def bad_steps(window: str) -> OverAll:
    """Return the share of bad steps within ``window``, over all workers."""
    return OverAll(BAD_STEPS.format(window=window))


def slow_interventions(window: str) -> OverAll:
    """Return the share of problems without an intervention in time within ``window``."""
    return OverAll(SLOW_INTERVENTIONS.format(window=window))
