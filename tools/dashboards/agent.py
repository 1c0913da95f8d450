"""The Agent dashboard: one agent in detail."""

from __future__ import annotations

from queenright.grafana.export import BLUE, Thresholds
from queenright.instrumentation import names
from tools.dashboards import panels, recorded
from tools.dashboards.links import agent_page, breaker_page
from tools.dashboards.panels import TOKENS_PER_SECOND, AnyPanel, Query, Row
from tools.dashboards.promql import age_by, buckets_of, counts_by, highest_by, quantile_by, rate_by
from tools.dashboards.states import (
    TOOL_OUTCOMES,
    VERDICTS,
    breaker_rank,
    breaker_words,
    state_rank,
    state_words,
)
from tools.dashboards.tables import Column, rows_by, series, with_action

TITLE = "Agent"
QUESTION = (
    "What is one agent doing? Choose an agent above to see its state, steps, activity, tools and tokens."
)


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("Health", _health_panels(at)),
        Row("Steps", _step_panels(at)),
        Row("Activity", _clock_panels(at)),
        Row("Tools", _tool_panels()),
        Row("Model and errors", _model_panels()),
    ]


def _health_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.state_history(
            "Health state",
            "The agent's health state over time. Annotations are interventions and firing alerts.",
            Query(state_rank(), "{{agent}}"),
            words=state_words(),
            size=(24, 5),
        ),
        rows_by(
            "agent",
            "Current state",
            "The current state and its age. The last column links to the agent's page in the console, with "
            "its sessions, its interventions and the buttons to nudge, terminate and recover it.",
            Column("State", state_rank(), words=state_words()),
            Column("In this state for", age_by("agent", names.AGENT_STATE_SINCE), "s"),
            Column("Bad steps", highest_by("agent", names.WORKER_STEPS_SINCE_ACCEPT), lines=at.bad_steps),
            links=[agent_page("Agent page")],
            action=Column(
                "Interventions and quick actions",
                with_action(
                    highest_by("agent", names.AGENT_STATE), "history · nudge · terminate · recover", "agent"
                ),
                links=[agent_page("History and actions")],
            ),
            size=(12, 5),
        ),
        series(
            "Info",
            "The agent's framework and version. Empty for an agent that sends only spans.",
            highest_by("agent, framework, version", names.WORKER_INFO),
            {"agent": "Agent", "framework": "Framework", "version": "Version"},
            links={"agent": [agent_page("Agent page")]},
            size=(6, 5),
        ),
        rows_by(
            "breaker",
            "Circuit breakers",
            "Circuit breakers of this agent. Click one for details and to reset it.",
            Column("State", breaker_rank(r'breaker=~"[^:]+:$agent(:.*)?"'), words=breaker_words()),
            links=[breaker_page("Details and reset")],
            size=(6, 5),
        ),
    ]


def _step_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.time_series(
            "Bad steps since the last accept",
            "Bad steps (retry, escalate, error) since the last ACCEPT. "
            "The lines are the thresholds of a warning and of medium, high and critical tickets.",
            "none",
            Query(highest_by("agent", names.WORKER_STEPS_SINCE_ACCEPT), "{{agent}}"),
            size=(12, 8),
            lines=at.bad_steps,
        ),
        panels.time_series(
            "Steps by verdict",
            "Steps per second, by verdict.",
            "ops",
            Query(rate_by("verdict", names.WORKER_STEPS), "{{verdict}}"),
            size=(12, 8),
            is_stacked=True,
            colours=VERDICTS,
        ),
    ]


def _clock_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.time_series(
            "Time since last activity",
            "The lines are the stall thresholds: between steps or in a model call, and inside a tool. They "
            "do not apply while the agent waits.",
            "s",
            Query(age_by("agent", recorded.LAST_ACTIVITY), "{{agent}}"),
            lines=at.activity,
        ),
        panels.time_series(
            "Time since last progress",
            "Progress is an ACCEPT, a checkpoint or a new tool result. "
            "A high value here with recent activity on the left suggests a loop.",
            "s",
            Query(age_by("agent", names.WORKER_LAST_PROGRESS), "{{agent}}"),
        ),
        panels.time_series(
            "Time since last heartbeat",
            "A heartbeat shows that the process is alive; it is neither activity nor progress. Above the "
            "line, the heartbeat counts as missing.",
            "s",
            Query(age_by("agent", recorded.LAST_HEARTBEAT), "{{agent}}"),
            lines=at.heartbeat,
        ),
        panels.time_series(
            "Time since last checkpoint",
            "Only for agents that save checkpoints. The lines are the thresholds of degraded and stuck.",
            "s",
            Query(age_by("agent", names.WORKER_LAST_CHECKPOINT), "{{agent}}"),
            lines=at.checkpoint,
        ),
        panels.state_history(
            "Waiting",
            "When the agent was waiting, by reason. Waiting stops the stall clock.",
            Query(f"{highest_by('agent, reason', names.WORKER_WAITING)} > 0", "{{agent}}: {{reason}}"),
            words=[(1, "waiting", BLUE)],
            size=(8, 8),
        ),
        panels.counts(
            "Stalls by phase",
            "Stalls that the agent counted itself, by phase.",
            Query(counts_by("phase", names.WORKER_STALLS), "{{phase}}"),
        ),
    ]


def _tool_panels() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Tool calls by tool",
            "Tool calls per second. A single tool that dominates may indicate a loop.",
            "ops",
            Query(rate_by("tool", names.WORKER_TOOL_CALLS), "{{tool}}"),
            size=(6, 8),
            is_stacked=True,
        ),
        panels.time_series(
            "Tool calls by outcome",
            "Tool calls per second, by outcome.",
            "ops",
            Query(rate_by("outcome", names.WORKER_TOOL_CALLS), "{{outcome}}"),
            size=(6, 8),
            is_stacked=True,
            colours=TOOL_OUTCOMES,
        ),
        panels.heat_map(
            "Tool durations",
            "Distribution of tool call durations. Dots are single calls and link to their traces.",
            "s",
            Query(buckets_of(names.WORKER_TOOL_DURATION), "{{le}}", exemplars=True),
            size=(6, 8),
        ),
        panels.time_series(
            "Tool duration (p95)",
            "95th percentile of the duration of each tool's calls. Dots link to traces.",
            "s",
            Query(quantile_by("tool", 0.95, names.WORKER_TOOL_DURATION), "{{tool}}", exemplars=True),
            size=(6, 8),
        ),
    ]


def _model_panels() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Step duration (p95)",
            "95th percentile of the duration of each node's steps. Dots link to traces.",
            "s",
            Query(quantile_by("node", 0.95, names.WORKER_STEP_DURATION), "{{node}}", exemplars=True),
        ),
        panels.time_series(
            "Tokens by model",
            "Tokens per second, by model and direction.",
            TOKENS_PER_SECOND,
            Query(rate_by("model, direction", names.WORKER_TOKENS), "{{model}} {{direction}}"),
            is_stacked=True,
        ),
        panels.counts(
            "Errors by class",
            "The agent's errors, by exception class.",
            Query(counts_by("error_type", names.WORKER_ERRORS), "{{error_type}}"),
        ),
    ]
