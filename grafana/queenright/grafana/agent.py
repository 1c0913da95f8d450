"""The agent dashboard: what is this one doing?"""

from __future__ import annotations

from queenright.grafana import panels, recorded
from queenright.grafana.links import agent_page, breaker_page
from queenright.grafana.panels import TOKENS_A_SECOND, AnyPanel, Query, Row
from queenright.grafana.promql import age_by, buckets_of, counts_by, highest_by, quantile_by, rate_by
from queenright.grafana.states import (
    BLUE,
    TOOL_OUTCOMES,
    VERDICTS,
    breaker_rank,
    breaker_words,
    state_rank,
    state_words,
)
from queenright.grafana.tables import Column, rows_by, series, with_action
from queenright.grafana.thresholds import Thresholds
from queenright.instrumentation import names

TITLE = "Agent"
QUESTION = (
    "What is this one doing? Choose an agent above: its state, its clocks, its steps, its tools, its tokens."
)


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("How is it?", _health(at)),
        Row("Does it get further?", _steps(at)),
        Row("When was it last heard of?", _clocks(at)),
        Row("Its tools", _tools()),
        Row("Its model", _model()),
    ]


def _health(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.state_history(
            "Health state",
            "The agent's health state as the monitor saw it. Marks are interventions and firing alerts.",
            Query(state_rank(), "{{agent}}"),
            words=state_words(),
            size=(24, 5),
        ),
        rows_by(
            "agent",
            "Now",
            "The state and since when. The last column leads to its page in the console: what it is doing, "
            "its sessions, what was done about it, and the buttons to nudge, terminate and recover it.",
            Column("State", state_rank(), words=state_words()),
            Column("In this state for", age_by("agent", names.AGENT_STATE_SINCE), "s"),
            Column("Bad steps", highest_by("agent", names.WORKER_STEPS_SINCE_ACCEPT), lines=at.bad_steps),
            links=[agent_page("Its page in the console")],
            action=Column(
                "Interventions and quick actions",
                with_action(
                    highest_by("agent", names.AGENT_STATE), "history · nudge · terminate · recover", "agent"
                ),
                links=[agent_page("What was done about it, and nudge, terminate or recover it")],
            ),
            size=(12, 5),
        ),
        series(
            "What it is",
            "The framework the agent is built on and its version. Empty for an agent that sends spans only.",
            highest_by("agent, framework, version", names.WORKER_INFO),
            {"agent": "Agent", "framework": "Framework", "version": "Version"},
            links={"agent": [agent_page("Its page in the console")]},
            size=(6, 5),
        ),
        rows_by(
            "breaker",
            "Its circuit breakers",
            "What of its surroundings is cut off, by the breakers that bear its name. "
            "Click one to see why, and to reset it.",
            Column("State", breaker_rank(r'breaker=~"[^:]+:$agent(:.*)?"'), words=breaker_words()),
            links=[breaker_page("Why, and reset it")],
            size=(6, 5),
        ),
    ]


def _steps(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.time_series(
            "Bad steps since the last accept",
            "Steps judged bad (retry, escalate, error) since the last ACCEPT. "
            "The lines are where a warning, then a medium, high and critical ticket begins.",
            "none",
            Query(highest_by("agent", names.WORKER_STEPS_SINCE_ACCEPT), "{{agent}}"),
            size=(12, 8),
            lines=at.bad_steps,
        ),
        panels.time_series(
            "Steps by verdict",
            "Steps per second by how they ended.",
            "ops",
            Query(rate_by("verdict", names.WORKER_STEPS), "{{verdict}}"),
            size=(12, 8),
            stacked=True,
            colours=VERDICTS,
        ),
    ]


def _clocks(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.time_series(
            "Since it last did anything",
            "Time since the last activity. The lines are the stall clocks: between steps or in a model call, "
            "and inside a tool. While the agent waits, they do not apply.",
            "s",
            Query(age_by("agent", recorded.LAST_ACTIVITY), "{{agent}}"),
            lines=at.activity,
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
            Query(age_by("agent", recorded.LAST_HEARTBEAT), "{{agent}}"),
            lines=at.heartbeat,
        ),
        panels.time_series(
            "Since its last checkpoint",
            "Time since it saved its state; only for agents that do. The lines are degraded and stuck.",
            "s",
            Query(age_by("agent", names.WORKER_LAST_CHECKPOINT), "{{agent}}"),
            lines=at.checkpoint,
        ),
        panels.state_history(
            "Waiting",
            "When the agent was rightly idle, and for what. Waiting stops the stall clock.",
            Query(f"{highest_by('agent, reason', names.WORKER_WAITING)} > 0", "{{agent}}: {{reason}}"),
            words=[(1, "waiting", BLUE)],
            size=(8, 8),
        ),
        panels.counts(
            "Stalls by phase",
            "How often the agent did nothing for too long, by what it was in the middle of.",
            Query(counts_by("phase", names.WORKER_STALLS), "{{phase}}"),
        ),
    ]


def _tools() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Tool calls by tool",
            "Tool calls a second. One tool alone, again and again, is what a loop looks like.",
            "ops",
            Query(rate_by("tool", names.WORKER_TOOL_CALLS), "{{tool}}"),
            size=(6, 8),
            stacked=True,
        ),
        panels.time_series(
            "Tool calls by outcome",
            "The same calls by how they ended.",
            "ops",
            Query(rate_by("outcome", names.WORKER_TOOL_CALLS), "{{outcome}}"),
            size=(6, 8),
            stacked=True,
            colours=TOOL_OUTCOMES,
        ),
        panels.heat_map(
            "Tool durations",
            "How the durations of tool calls are spread. The dots are single calls and lead to their traces.",
            "s",
            Query(buckets_of(names.WORKER_TOOL_DURATION), "{{le}}", exemplars=True),
            size=(6, 8),
        ),
        panels.time_series(
            "Slow tools",
            "The duration within which 95 % of each tool's calls ended; the dots lead to traces.",
            "s",
            Query(quantile_by("tool", 0.95, names.WORKER_TOOL_DURATION), "{{tool}}", exemplars=True),
            size=(6, 8),
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
            "Tokens a second, by model and direction.",
            TOKENS_A_SECOND,
            Query(rate_by("model, direction", names.WORKER_TOKENS), "{{model}} {{direction}}"),
            stacked=True,
        ),
        panels.counts(
            "Errors by class",
            "The agent's errors by the class of the exception.",
            Query(counts_by("error_type", names.WORKER_ERRORS), "{{error_type}}"),
        ),
    ]
