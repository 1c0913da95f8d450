"""The Fleet dashboard: the state of all agents."""

from __future__ import annotations

from queenright.grafana.export import BLUE, Thresholds
from queenright.instrumentation import names
from queenright.instrumentation.names import WaitingReason
from tools.dashboards import limits, panels, recorded
from tools.dashboards.firing import firing_alerts
from tools.dashboards.links import agent_dashboard, agent_page, panel_link
from tools.dashboards.panels import Query, Row
from tools.dashboards.promql import (
    IN_PARTITIONS,
    age_by,
    counts_by,
    highest_by,
    quantile_by,
    rate_by,
    select,
    share_of,
    total_by,
    while_known,
)
from tools.dashboards.states import (
    SEVERITIES,
    SPANS,
    VERDICTS,
    WITHIN,
    agents_by_state,
    coloured_states,
    state_rank,
    state_words,
)
from tools.dashboards.tables import Column, rows_by, with_action

TITLE = "Fleet"
QUESTION = "Which agents need attention? The state of every agent, findings and tickets."

_WAITING_FOR_USER = f'reason="{WaitingReason.USER_INPUT}"'


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("Overview", _current_panels(at)),
        Row("Shared causes", _shared_cause_panels(at)),
        Row("Detection", _detection_panels(at)),
        Row("Work", _work_panels(at)),
    ]


def _current_panels(at: Thresholds) -> list[panels.AnyPanel]:
    return [
        panels.numbers(
            "Agents by state",
            "Running agents in each health state. The judge checks stuck and failing agents.",
            "none",
            Query(agents_by_state(), "{{state}}"),
            size=(10, 4),
            colours=coloured_states(),
        ),
        panels.numbers(
            "Open tickets by severity",
            "Open tickets. Critical and high tickets page; medium and low tickets go to the Slack channel.",
            "none",
            Query(
                f"{total_by('severity', names.TICKETS_OPEN)}"
                f" or on () {while_known(0, names.AGENTS, label='severity', word='any')}",
                "{{severity}}",
            ),
            size=(8, 4),
            colours=SEVERITIES.items(),
        ).links([panel_link("Tickets", "")]),
        panels.numbers(
            "Waiting for a user",
            "Agents that asked a question and wait for the answer. This is never a stall.",
            "none",
            Query(
                f"{_waiting_agents_query()} or {while_known(0, names.WORKER_LAST_HEARTBEAT)}",
                "waiting",
            ),
            size=(3, 4),
            colours=[("waiting", BLUE)],
        ),
        panels.numbers(
            "Last judge check",
            "Time since the judge finished a check. While this grows, green states are not reliable.",
            "s",
            Query(age_by("", names.JUDGE_LAST_CHECK), "ago"),
            size=(3, 4),
            lines=at.judge,
        ),
        _agent_panels(at),
    ]


def _waiting_agents_query() -> str:
    """Return the query for the agents that wait; one with sessions in several partitions counts once."""
    without_partition = select(names.WORKER_WAITING, _WAITING_FOR_USER, f'{names.PARTITION_LABEL}=""')
    in_partitions = select(names.WORKER_WAITING, _WAITING_FOR_USER, IN_PARTITIONS)
    return f"sum by () ({without_partition} or max by (job, agent) ({in_partitions}))"


def _agent_panels(at: Thresholds) -> panels.AnyPanel:
    return rows_by(
        "agent",
        "Agents",
        "One row per agent, worst state first. Click a name for the agent's dashboard, or an action for its "
        "page in the console. In a large fleet only unhealthy agents have a state.",
        Column("State", state_rank(), words=state_words()),
        Column("In this state for", age_by("agent", names.AGENT_STATE_SINCE), "s"),
        Column("Bad steps", highest_by("agent", names.WORKER_STEPS_SINCE_ACCEPT), lines=at.bad_steps),
        Column("Since progress", age_by("agent", names.WORKER_LAST_PROGRESS), "s"),
        Column("Since heartbeat", age_by("agent", recorded.LAST_HEARTBEAT), "s", lines=at.heartbeat),
        Column(
            "Waiting for a user", highest_by("agent", names.WORKER_WAITING, _WAITING_FOR_USER), "bool_yes_no"
        ),
        links=[agent_dashboard(), agent_page("Agent page")],
        action=Column(
            "Quick actions",
            with_action(highest_by("agent", names.AGENT_STATE), "nudge · terminate · recover", "agent"),
            links=[agent_page("Nudge, terminate or recover")],
        ),
        size=(24, 10),
    )


def _shared_cause_panels(at: Thresholds) -> list[panels.AnyPanel]:
    return [
        panels.time_series(
            "Agents by state over time",
            "Health of the fleet over time. Many orange or red agents at the same time indicate a shared "
            "cause: a provider, a tool, a network.",
            "none",
            Query(agents_by_state(), "{{state}}"),
            size=(6, 8),
            is_stacked=True,
            colours=coloured_states(),
        ),
        panels.time_series(
            "Agents by finding",
            "Agents with an open finding of each kind; an agent may have several, and counts in each "
            "partition of a cluster. Many agents with the same kind at the same time usually share a "
            "cause. Provider failures of several agents page about the fleet.",
            "none",
            Query(f"{total_by('kind', names.AGENTS_WITH_FINDING)} > 0", "{{kind}}"),
            size=(6, 8),
        ),
        panels.time_series(
            "Unhealthy share of the fleet",
            "Degraded, stuck and failing agents as a share of all running agents. "
            "Above the line, one page about the fleet replaces pages about single agents.",
            "percentunit",
            Query(highest_by("", recorded.IN_TROUBLE), "unhealthy"),
            size=(6, 8),
            lines=limits.IN_TROUBLE,
            maximum=1,
        ),
        firing_alerts(
            "Firing alerts",
            "Firing alerts about agents, the fleet and Queenright. Click an agent for its dashboard.",
            size=(6, 8),
        ),
        panels.time_series(
            "Failed model calls",
            "Share of failed calls of each model, over all agents. Failures for all agents indicate a "
            "problem of the provider.",
            "percentunit",
            Query(
                share_of("provider, model", names.PROVIDER_CALLS, 'outcome="error"'), "{{provider}} {{model}}"
            ),
            size=(24, 7),
            maximum=1,
        ),
    ]


def _detection_panels(at: Thresholds) -> list[panels.AnyPanel]:
    worst = f"topk(10, {highest_by('agent', names.WORKER_STEPS_SINCE_ACCEPT)})"
    return [
        panels.time_series(
            "Bad steps since the last accept",
            "The ten agents with the most bad steps (retry, escalate, error) since their last ACCEPT. "
            "The lines are the thresholds of a warning and of medium, high and critical tickets.",
            "none",
            Query(worst, "{{agent}}"),
            size=(6, 8),
            lines=at.bad_steps,
        ),
        panels.counts(
            "Stalls by phase",
            "Stalls counted by the agents themselves, by phase.",
            Query(counts_by("phase", names.WORKER_STALLS), "{{phase}}"),
            size=(6, 8),
        ),
        panels.counts(
            "Findings by kind",
            "Findings of the detectors: loops, error streaks, stalls, provider failures.",
            Query(f"{counts_by('kind', names.FINDINGS)} > 0", "{{kind}}"),
            size=(6, 8),
        ),
        panels.time_series(
            "Detection delay",
            "Time from a crossed threshold to the state change. The objective is 5 s.",
            "s",
            Query(quantile_by("", 0.5, names.DETECTION_DELAY), "p50"),
            Query(highest_by("", recorded.DETECTION_P99), "p99"),
            colours=WITHIN,
            size=(6, 8),
            lines=limits.DETECTION,
        ),
    ]


def _work_panels(at: Thresholds) -> list[panels.AnyPanel]:
    return [
        panels.time_series(
            "Steps by verdict",
            "Steps per second over all agents. In a healthy fleet, accept dominates.",
            "ops",
            Query(rate_by("verdict", names.WORKER_STEPS), "{{verdict}}"),
            is_stacked=True,
            colours=VERDICTS,
        ),
        panels.time_series(
            "Bad steps against the objective",
            "Share of bad steps (retry, escalate, error) in the last hour and in five minutes. "
            "The lines are the error budget and the burn rate that pages.",
            "percentunit",
            Query(highest_by("", recorded.bad_steps("5m")), "5 min"),
            Query(highest_by("", recorded.bad_steps("1h")), "1 h"),
            colours=SPANS,
            lines=at.bad_step_share,
        ),
        panels.time_series(
            "Step duration",
            "Duration of steps. Dots are single steps and link to their traces.",
            "s",
            *(
                Query(quantile_by("", quantile, names.WORKER_STEP_DURATION), label, exemplars=True)
                for quantile, label in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
            ),
            colours=WITHIN,
        ),
        panels.time_series(
            "Tool errors by tool",
            "Share of each tool's calls that ended in an error or a timeout. Above the line an alert fires.",
            "percentunit",
            Query(
                share_of("tool", names.WORKER_TOOL_CALLS, f'outcome!="{names.ToolOutcome.OK}"'), "{{tool}}"
            ),
            lines=limits.TOOL_ERRORS,
            maximum=1,
        ),
        panels.time_series(
            "Tool errors by agent",
            "The ten agents with the highest share of failed tool calls over five minutes. "
            "If only one agent is high, check its tools. If all are high, check what the tools depend on.",
            "percentunit",
            Query(f"topk(10, max by (agent) ({select(recorded.TOOL_ERRORS)}))", "{{agent}}"),
            lines=limits.TOOL_ERRORS,
            maximum=1,
        ),
        panels.counts(
            "Errors by class",
            "Errors of all agents by exception class; the ten most frequent.",
            Query(f"topk(10, {counts_by('error_type', names.WORKER_ERRORS)} > 0)", "{{error_type}}"),
        ),
    ]
