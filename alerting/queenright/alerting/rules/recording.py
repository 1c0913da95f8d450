"""What alerts and dashboards share. Names: ``level:metric:operations``."""

from __future__ import annotations

from typing import Final

from queenright.alerting.rules import burn
from queenright.alerting.rules.promql import ACTIVITY, BY_WORKER, CHECKPOINT, HEARTBEAT, WAITING, select
from queenright.alerting.rules.rule import Group, Links, Record, Selectors
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names

FILE: Final = "recording.yml"

TOOL_CALLS: Final = f"agent_instance_outcome:{names.WORKER_TOOL_CALLS.name.removesuffix('_total')}:rate5m"
TOOL_ERRORS: Final = "agent_instance:queenright_worker_tool_errors:ratio_rate5m"
TOKENS: Final = "agent_instance:queenright_worker_tokens:rate10m"
AGENTS: Final = "cluster:queenright_agents:sum"
UNHEALTHY: Final = "cluster:queenright_agents_unhealthy:ratio"


def groups(settings: HealthSettings, selectors: Selectors, links: Links) -> tuple[Group, ...]:
    """Return the recording rules."""
    return (
        Group(name="queenright-worker-recording", file=FILE, links=links, rules=_of_workers(selectors)),
        Group(name="queenright-service-recording", file=FILE, links=links, rules=_of_service(selectors)),
        Group(
            name="queenright-slo-recording", file=FILE, links=links, rules=burn.records(settings, selectors)
        ),
    )


def _of_workers(selectors: Selectors) -> tuple[Record, ...]:
    steps = select(selectors, names.WORKER_STEPS)
    calls = select(selectors, names.WORKER_TOOL_CALLS)
    tokens = select(selectors, names.WORKER_TOKENS)
    durations = select(selectors, names.WORKER_STEP_DURATION, suffix="_bucket")
    last_words = (
        (HEARTBEAT, names.WORKER_LAST_HEARTBEAT),
        (ACTIVITY, names.WORKER_LAST_ACTIVITY),
        (CHECKPOINT, names.WORKER_LAST_CHECKPOINT),
        (WAITING, names.WORKER_WAITING),
    )
    first, *others = (_last_word(name, select(selectors, metric)) for name, metric in last_words)
    return (
        Record(
            name=first.name,
            expr=first.expr,
            why="The last word of a worker. A process that was killed takes its series with it, and its "
            "target is down: then the word of the last hour counts. A worker that ended well removes its "
            "series while its target is up, and is forgotten.",
        ),
        *others,
        Record(
            name="agent_verdict:queenright_worker_steps:rate5m",
            expr=f"sum by (agent, verdict) (rate({steps}[5m]))",
        ),
        Record(name=TOOL_CALLS, expr=f"sum by (agent, job, instance, outcome) (rate({calls}[5m]))"),
        Record(
            name=TOOL_ERRORS,
            expr=f'sum {BY_WORKER} ({TOOL_CALLS}{{outcome!="ok"}})\n/\nsum {BY_WORKER} ({TOOL_CALLS})',
        ),
        Record(
            name=TOKENS,
            expr=f"sum {BY_WORKER} (rate({tokens}[10m])) > 0",
            why="Only while it uses any: what is usual for a worker is what it uses when it works.",
        ),
        Record(
            name="agent:queenright_worker_step_duration_seconds:p95_5m",
            expr=f"histogram_quantile(0.95,\nsum by (agent, le) (rate({durations}[5m])))",
        ),
    )


def _last_word(name: str, metric: str) -> Record:
    return Record(
        name=name,
        expr=f"max {BY_WORKER} ({metric})\nor\nmax {BY_WORKER} (last_over_time({metric}[1h]))\n"
        "and on (job, instance) up == 0",
    )


def _of_service(selectors: Selectors) -> tuple[Record, ...]:
    alive = select(selectors, names.AGENTS, 'state!="terminated"')
    ill = select(selectors, names.AGENTS, 'state=~"degraded|stuck|failing"')
    delays = select(selectors, names.DETECTION_DELAY, suffix="_bucket")
    return (
        Record(name=AGENTS, expr=f"sum({alive})"),
        Record(name=UNHEALTHY, expr=f"sum({ill})\n/\nsum({alive})"),
        Record(
            name="cluster:queenright_detection_delay_seconds:p99_5m",
            expr=f"histogram_quantile(0.99, sum by (le) (rate({delays}[5m])))",
        ),
    )
