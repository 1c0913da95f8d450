"""The fleet dashboard: who needs me now?"""

from __future__ import annotations

from queenright.grafana import panels, recorded
from queenright.grafana.firing import firing_alerts
from queenright.grafana.links import agent_dashboard, agent_page, panel_link
from queenright.grafana.panels import Query, Row
from queenright.grafana.promql import (
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
from queenright.grafana.states import (
    BLUE,
    SEVERITIES,
    SPANS,
    VERDICTS,
    WITHIN,
    coloured_states,
    state_rank,
    state_words,
)
from queenright.grafana.tables import Column, rows_by, with_action
from queenright.grafana.thresholds import Thresholds
from queenright.instrumentation import names
from queenright.instrumentation.names import WaitingReason

TITLE = "Fleet"
QUESTION = "Who needs me now? The state of every agent, what was found, who was told."

_ASKS = f'reason="{WaitingReason.USER_INPUT}"'


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("Who needs me now?", _now(at)),
        Row("Is it one agent, or something that they share?", _together(at)),
        Row("What was found", _detection(at)),
        Row("How the work goes", _work(at)),
    ]


def _now(at: Thresholds) -> list[panels.AnyPanel]:
    return [
        panels.numbers(
            "Agents by state",
            "How many agents are in each health state. Stuck and failing ones are being looked at; "
            "terminated ones were stopped.",
            "none",
            Query(total_by("state", names.AGENTS), "{{state}}"),
            size=(10, 4),
            colours=coloured_states(),
        ),
        panels.numbers(
            "Open tickets by severity",
            "Escalations that are not closed. Critical and high ones page; "
            "medium and low ones go to the channel.",
            "none",
            Query(
                f"{total_by('severity', names.TICKETS_OPEN)}"
                f" or on () {while_known(0, names.AGENTS, label='severity', word='any')}",
                "{{severity}}",
            ),
            size=(8, 4),
            colours=SEVERITIES.items(),
        ).links([panel_link("The tickets", "")]),
        panels.numbers(
            "Waiting for a user",
            "Agents that asked a question and rightly do nothing until it is answered. Never a stall.",
            "none",
            Query(
                f"{total_by('', names.WORKER_WAITING, _ASKS)}"
                f" or {while_known(0, names.WORKER_LAST_HEARTBEAT)}",
                "waiting",
            ),
            size=(3, 4),
            colours=[("waiting", BLUE)],
        ),
        panels.numbers(
            "Judge's last look",
            "Time since the judge finished a check. While this grows, green beside it means nothing.",
            "s",
            Query(age_by("", names.JUDGE_LAST_CHECK), "ago"),
            size=(3, 4),
            lines=at.judge,
        ),
        _agents(at),
    ]


def _agents(at: Thresholds) -> panels.AnyPanel:
    return rows_by(
        "agent",
        "Agents",
        "One row an agent, worst state first. Click a name to see what that agent is doing; click what can "
        "be done about it to go to its page in the console. In a large fleet only unhealthy agents have a "
        "state.",
        Column("State", state_rank(), words=state_words()),
        Column("In this state for", age_by("agent", names.AGENT_STATE_SINCE), "s"),
        Column("Bad steps", highest_by("agent", names.WORKER_STEPS_SINCE_ACCEPT), lines=at.bad_steps),
        Column("Since progress", age_by("agent", names.WORKER_LAST_PROGRESS), "s"),
        Column("Since heartbeat", age_by("agent", recorded.LAST_HEARTBEAT), "s", lines=at.heartbeat),
        Column("Waits for a user", highest_by("agent", names.WORKER_WAITING, _ASKS), "bool_yes_no"),
        links=[agent_dashboard(), agent_page("Its page in the console")],
        action=Column(
            "Quick actions",
            with_action(highest_by("agent", names.AGENT_STATE), "nudge · terminate · recover", "agent"),
            links=[agent_page("Nudge, terminate or recover it")],
        ),
        size=(24, 10),
    )


def _together(at: Thresholds) -> list[panels.AnyPanel]:
    return [
        panels.time_series(
            "Agents by state over time",
            "How the fleet's health developed. Many agents orange or red at once point at something "
            "shared: a provider, a tool, a network.",
            "none",
            Query(total_by("state", names.AGENTS), "{{state}}"),
            size=(6, 8),
            stacked=True,
            colours=coloured_states(),
        ),
        panels.time_series(
            "Agents by finding",
            "How many agents have an open finding of each kind; one agent may have several. Many with the "
            "same at once: it is not them. Provider failures of several agents page about the fleet.",
            "none",
            Query(f"{total_by('kind', names.AGENTS_WITH_FINDING)} > 0", "{{kind}}"),
            size=(6, 8),
        ),
        panels.time_series(
            "Share of the fleet in trouble",
            "Degraded, stuck and failing agents, of all that are not terminated. "
            "From the line on it is one page about the fleet, not one about each agent.",
            "percentunit",
            Query(highest_by("", recorded.IN_TROUBLE), "in trouble"),
            size=(6, 8),
            lines=at.in_trouble,
            most=1,
        ),
        firing_alerts(
            "Firing alerts",
            "Our alerts that fire, about agents, the fleet and the monitor. Click an agent to see its own.",
            size=(6, 8),
        ),
        panels.time_series(
            "Failed model calls",
            "Share of the calls of each model that failed, over all agents. What fails for everybody "
            "is its provider's trouble.",
            "percentunit",
            Query(
                share_of("provider, model", names.PROVIDER_CALLS, 'outcome="error"'), "{{provider}} {{model}}"
            ),
            size=(24, 7),
            most=1,
        ),
    ]


def _detection(at: Thresholds) -> list[panels.AnyPanel]:
    worst = f"topk(10, {highest_by('agent', names.WORKER_STEPS_SINCE_ACCEPT)})"
    return [
        panels.time_series(
            "Bad steps since the last accept",
            "The ten agents with the most steps judged bad (retry, escalate, error) since their last ACCEPT. "
            "The lines are where a warning, then a medium, high and critical ticket begins.",
            "none",
            Query(worst, "{{agent}}"),
            size=(6, 8),
            lines=at.bad_steps,
        ),
        panels.counts(
            "Stalls by phase",
            "Agents that did nothing for too long, by what they were in the middle of.",
            Query(counts_by("phase", names.WORKER_STALLS), "{{phase}}"),
            size=(6, 8),
        ),
        panels.counts(
            "Findings by kind",
            "What the detectors saw: loops, streaks of errors, stalls, provider failures.",
            Query(f"{counts_by('kind', names.FINDINGS)} > 0", "{{kind}}"),
            size=(6, 8),
        ),
        panels.time_series(
            "Detection delay",
            "From the moment a threshold was crossed to the moment the state changed. The promise is 5 s.",
            "s",
            Query(quantile_by("", 0.5, names.DETECTION_DELAY), "half within"),
            Query(highest_by("", recorded.DETECTION_P99), "99 % within"),
            colours=WITHIN,
            size=(6, 8),
            lines=at.detection,
        ),
    ]


def _work(at: Thresholds) -> list[panels.AnyPanel]:
    return [
        panels.time_series(
            "Steps by verdict",
            "Steps per second over all agents. Work goes well when accept leads.",
            "ops",
            Query(rate_by("verdict", names.WORKER_STEPS), "{{verdict}}"),
            stacked=True,
            colours=VERDICTS,
        ),
        panels.time_series(
            "Bad steps against the objective",
            "Share of all steps judged bad (retry, escalate, error), in the last hour and in five minutes. "
            "The lines are the share that may be bad, and the share that spends a month's allowance "
            "so fast that it pages.",
            "percentunit",
            Query(highest_by("", recorded.bad_steps("5m")), "five minutes"),
            Query(highest_by("", recorded.bad_steps("1h")), "an hour"),
            colours=SPANS,
            lines=at.bad_step_share,
        ),
        panels.time_series(
            "Step duration",
            "How long steps take; the dots are single steps and lead to their traces.",
            "s",
            *(
                Query(quantile_by("", quantile, names.WORKER_STEP_DURATION), label, exemplars=True)
                for quantile, label in ((0.5, "half within"), (0.95, "95 % within"), (0.99, "99 % within"))
            ),
            colours=WITHIN,
        ),
        panels.time_series(
            "Tool errors by tool",
            "Share of the calls of each tool that ended in an error or a time-out. At the line we warn.",
            "percentunit",
            Query(
                share_of("tool", names.WORKER_TOOL_CALLS, f'outcome!="{names.ToolOutcome.OK}"'), "{{tool}}"
            ),
            lines=at.tool_errors,
            most=1,
        ),
        panels.time_series(
            "Tool errors by agent",
            "The ten agents of whose tool calls the largest share failed, over five minutes. "
            "One agent high: its tools; all of them: what the tools need.",
            "percentunit",
            Query(f"topk(10, max by (agent) ({select(recorded.TOOL_ERRORS)}))", "{{agent}}"),
            lines=at.tool_errors,
            most=1,
        ),
        panels.counts(
            "Errors by class",
            "Errors of all agents by the class of the exception; the ten most frequent.",
            Query(f"topk(10, {counts_by('error_type', names.WORKER_ERRORS)} > 0)", "{{error_type}}"),
        ),
    ]
