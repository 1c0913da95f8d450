"""The agent dashboard: what is this one doing?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from queenright.grafana import panels
from queenright.grafana.frame import dashboard
from queenright.grafana.panels import AGENT_UID, AnyPanel, Query
from queenright.grafana.promql import age_by, buckets_of, highest_by, increase_by, quantile_by, rate_by
from queenright.grafana.states import (
    ACTIVITY_AGE,
    BAD_STEPS,
    BLUE,
    CHECKPOINT_AGE,
    GREEN,
    GREY,
    HEARTBEAT_AGE,
    ORANGE,
    RED,
    YELLOW,
    state_rank,
)
from queenright.instrumentation import names

UID: Final = AGENT_UID


def agent() -> Dashboard:
    """Return the agent dashboard."""
    return dashboard(
        "Queenright / Agent",
        UID,
        "What is this one doing? Choose an agent above: its state, its steps, its tools, its tokens.",
        [*_health(), *_clocks(), *_tools(), *_model()],
    )


def _health() -> list[AnyPanel]:
    return [
        panels.state_history(
            "Health state",
            "The agent's health state as the monitor saw it. Marks are interventions and firing alerts.",
            Query(state_rank(), "{{agent}}"),
            words=panels.state_words(),
            size=(16, 6),
        ),
        panels.labels_table(
            "What it is",
            "The framework the agent is built on and its version. Empty for an agent that sends spans only.",
            highest_by("agent, framework, version", names.WORKER_INFO),
            labels=names.WORKER_INFO.labels,
        ),
        panels.time_series(
            "Bad steps since the last accept",
            "Steps judged bad (retry, escalate, error) since the last ACCEPT. "
            "The lines are where a warning, then a medium, high and critical ticket begins.",
            "none",
            Query(highest_by("agent", names.WORKER_STEPS_SINCE_ACCEPT), "{{agent}}"),
            size=(12, 8),
            lines=BAD_STEPS,
        ),
        panels.time_series(
            "Steps by verdict",
            "Steps per second by how they ended.",
            "ops",
            Query(rate_by("verdict", names.WORKER_STEPS), "{{verdict}}"),
            size=(12, 8),
            stacked=True,
            colours=[
                ("accept", GREEN),
                ("continue", BLUE),
                ("retry", YELLOW),
                ("escalate", ORANGE),
                ("error", RED),
            ],
        ),
    ]


def _clocks() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Since it last did anything",
            "Time since the last activity. The lines are the stall clocks: between steps or in a model call, "
            "and inside a tool. While the agent waits, they do not apply.",
            "s",
            Query(age_by("agent", names.WORKER_LAST_ACTIVITY), "{{agent}}"),
            lines=ACTIVITY_AGE,
        ),
        panels.time_series(
            "Since it got further",
            "Time since the last progress: an accept, a checkpoint, a tool result not seen before. "
            "An agent that is busy here but low on the left is going round in circles.",
            "s",
            Query(age_by("agent", names.WORKER_LAST_PROGRESS), "{{agent}}"),
        ),
        panels.time_series(
            "Since its last heartbeat",
            "Time since the process said that it lives. A heartbeat is neither activity nor progress. "
            "The line is where it counts as missing.",
            "s",
            Query(age_by("agent", names.WORKER_LAST_HEARTBEAT), "{{agent}}"),
            lines=HEARTBEAT_AGE,
        ),
        panels.time_series(
            "Since its last checkpoint",
            "Time since it saved its state; only for agents that do. The lines are degraded and stuck.",
            "s",
            Query(age_by("agent", names.WORKER_LAST_CHECKPOINT), "{{agent}}"),
            lines=CHECKPOINT_AGE,
        ),
        panels.state_history(
            "Waiting",
            "When the agent was rightly idle, and for what. Waiting stops the stall clock.",
            Query(highest_by("agent, reason", names.WORKER_WAITING), "{{agent}}: {{reason}}"),
            words=[(0, "no", GREY), (1, "waiting", BLUE)],
            size=(8, 8),
        ),
        panels.counts(
            "Stalls by phase",
            "How often the agent did nothing for too long, by what it was in the middle of.",
            Query(increase_by("phase", names.WORKER_STALLS), "{{phase}}"),
        ),
    ]


def _tools() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Tool calls by outcome",
            "Tool calls per second. One tool alone, again and again, is what a loop looks like.",
            "ops",
            Query(rate_by("tool, outcome", names.WORKER_TOOL_CALLS), "{{tool}} {{outcome}}"),
            stacked=True,
        ),
        panels.heat_map(
            "Tool durations",
            "How the durations of tool calls are spread. The dots are single calls and lead to their traces.",
            "s",
            Query(buckets_of(names.WORKER_TOOL_DURATION), "{{le}}", exemplars=True),
        ),
        panels.time_series(
            "Slow tools",
            "The duration within which 95 % of each tool's calls ended; the dots lead to traces.",
            "s",
            Query(quantile_by("tool", 0.95, names.WORKER_TOOL_DURATION), "{{tool}}", exemplars=True),
        ),
    ]


def _model() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Slow steps",
            "The duration within which 95 % of each node's steps ended; the dots lead to traces.",
            "s",
            Query(quantile_by("node", 0.95, names.WORKER_STEP_DURATION), "{{node}}", exemplars=True),
        ),
        panels.time_series(
            "Tokens by model",
            "Tokens per second, by model and direction.",
            "cps",
            Query(rate_by("model, direction", names.WORKER_TOKENS), "{{model}} {{direction}}"),
            stacked=True,
        ),
        panels.counts(
            "Errors by class",
            "The agent's errors by the class of the exception.",
            Query(increase_by("error_type", names.WORKER_ERRORS), "{{error_type}}"),
        ),
    ]
