"""Recording rules that alerts and dashboards share, named ``level:metric:operations``."""

from __future__ import annotations

from typing import Final

from queenright.alerting.rules import burn
from queenright.alerting.rules.promql import (
    ACTIVITY,
    BY_WORKER,
    CHECKPOINT,
    HEARTBEAT,
    IN_PARTITIONS,
    ON_WORKER,
    WAITING,
    select,
)
from queenright.alerting.rules.rule import Group, Links, RecordingRule, Selectors
from queenright.health.findings import FindingKind
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names

FILE: Final = "recording.yml"

TOOL_CALLS: Final = f"agent_instance_outcome:{names.WORKER_TOOL_CALLS.name.removesuffix('_total')}:rate5m"
TOOL_ERRORS: Final = "agent_instance:queenright_worker_tool_errors:ratio_rate5m"
TOKENS: Final = "agent_instance:queenright_worker_tokens:rate10m"
USUAL_TOKENS: Final = "agent_instance:queenright_worker_tokens:avg6h"
AGENTS: Final = "cluster:queenright_agents:sum"
UNHEALTHY: Final = "cluster:queenright_agents_unhealthy:ratio"


def groups(settings: HealthSettings, selectors: Selectors, links: Links) -> tuple[Group, ...]:
    """Return the recording rules."""
    parts = (
        ("queenright-worker-recording", "", _build_worker_records(selectors)),
        # A longer interval, because the rule reads six hours of every agent.
        ("queenright-usage-recording", "2m", _build_usage_records(selectors)),
        ("queenright-service-recording", "", _build_service_records(selectors)),
        ("queenright-slo-recording", "", burn.records(settings, selectors)),
    )
    return tuple(
        Group(name=name, file=FILE, links=links, interval=interval, rules=rules)
        for name, interval, rules in parts
    )


def _build_worker_records(selectors: Selectors) -> tuple[RecordingRule, ...]:
    beats = f"max {BY_WORKER} ({select(selectors, names.WORKER_LAST_HEARTBEAT)})"
    from_service = (
        f"unless on (job, instance) last_over_time({select(selectors, names.WORKERS_EVALUATED)}[1h])"
    )
    steps = select(selectors, names.WORKER_STEPS)
    calls = select(selectors, names.WORKER_TOOL_CALLS)
    return (
        RecordingRule(
            name=HEARTBEAT,
            expr=f"{beats}\nor\n{HEARTBEAT} > time() - 3600\nand on (job, instance) up == 0\n{from_service}",
            why="The last heartbeat of a worker. When a process is killed, its series end and its target "
            "is down; the recorded value is then kept for an hour after the last heartbeat. A worker that "
            "ended normally removes its series while its target is up, and is dropped. Series of the "
            "service are not kept, because its workers are not dead if the service is down.",
        ),
        *(
            _last_value(name, select(selectors, metric))
            for name, metric in (
                (ACTIVITY, names.WORKER_LAST_ACTIVITY),
                (CHECKPOINT, names.WORKER_LAST_CHECKPOINT),
                (WAITING, names.WORKER_WAITING),
            )
        ),
        RecordingRule(name=burn.STEPS, expr=f"sum by (agent, verdict) (rate({steps}[5m]))"),
        RecordingRule(name=TOOL_CALLS, expr=f"sum by (agent, job, instance, outcome) (rate({calls}[5m]))"),
        RecordingRule(
            name=TOOL_ERRORS,
            expr=f'sum {BY_WORKER} ({TOOL_CALLS}{{outcome!="ok"}})\n/\nsum {BY_WORKER} ({TOOL_CALLS})',
        ),
    )


def _last_value(name: str, metric: str) -> RecordingRule:
    return RecordingRule(
        name=name,
        expr=f"max {BY_WORKER} ({metric})\nor\n{name}\nand on (job, instance) up == 0\n"
        f"and {ON_WORKER} {HEARTBEAT}",
    )


def _build_usage_records(selectors: Selectors) -> tuple[RecordingRule, ...]:
    tokens = select(selectors, names.WORKER_TOKENS)
    return (
        RecordingRule(
            name=TOKENS,
            expr=f"sum {BY_WORKER} (rate({tokens}[10m])) > 0",
            why="Recorded only while the worker uses tokens, so that the usual rate is its rate while "
            "active.",
        ),
        RecordingRule(name=USUAL_TOKENS, expr=f"avg_over_time({TOKENS}[6h] offset 10m)"),
    )


def _count_duplicates(series: str) -> str:
    """Return a query for the number of series in excess of one per agent."""
    return f"(sum(count by (job, agent) ({series}) - 1) or vector(0))"


def _build_service_records(selectors: Selectors) -> tuple[RecordingRule, ...]:
    alive = select(selectors, names.AGENTS)
    duplicate_agents = _count_duplicates(select(selectors, names.AGENT_STATE_SINCE, IN_PARTITIONS))
    duplicate_unhealthy = _count_duplicates(select(selectors, names.AGENT_UNPAGED, IN_PARTITIONS))
    unhealthy = select(selectors, names.AGENTS, 'state=~"degraded|stuck|failing"')
    # Agents that only lack an MCP server continue with their other tools, so they need no page.
    missing_server = select(selectors, names.AGENTS_WITH_ONE_KIND, f'kind="{FindingKind.MCP_SERVER_MISSING}"')
    delays = select(selectors, names.DETECTION_DELAY, suffix="_bucket")
    return (
        RecordingRule(
            name=AGENTS,
            expr=f"sum({alive}) - {duplicate_agents}",
            why="An agent with sessions in several partitions of a cluster counts once.",
        ),
        RecordingRule(
            name=UNHEALTHY,
            expr=f"(sum({unhealthy}) - (sum({missing_server}) or vector(0)) - {duplicate_unhealthy})\n"
            f"/\n{AGENTS}",
        ),
        RecordingRule(
            name="cluster:queenright_detection_delay_seconds:p99_5m",
            expr=f"histogram_quantile(0.99, sum by (le) (rate({delays}[5m])))",
        ),
    )
