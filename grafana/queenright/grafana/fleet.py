"""The fleet dashboard: who needs me now?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from queenright.grafana import panels
from queenright.grafana.frame import dashboard
from queenright.grafana.panels import AnyPanel, Column, Query
from queenright.grafana.promql import (
    age_by,
    highest_by,
    increase_by,
    quantile_by,
    rate_by,
    share_by,
    total_by,
)
from queenright.grafana.states import (
    BAD_STEPS,
    BLUE,
    GREEN,
    JUDGE_AGE,
    ORANGE,
    RED,
    SEVERITIES,
    STATES,
    YELLOW,
    state_rank,
)
from queenright.instrumentation import names
from queenright.instrumentation.names import WaitingReason

UID: Final = "queenright-fleet"


def fleet() -> Dashboard:
    """Return the fleet dashboard."""
    return dashboard(
        "Queenright / Fleet",
        UID,
        "Who needs me now? The state of every agent, what was found, who was told.",
        [*_now(), *_detection(), *_decisions(), *_work(), *_cost()],
    )


def _now() -> list[AnyPanel]:
    state_colours = [(state, colour) for state, (_, colour) in STATES.items()]
    asks = f'reason="{WaitingReason.USER_INPUT}"'
    return [
        panels.numbers(
            "Agents by state",
            "How many agents are in each health state. Stuck and failing ones are being looked at; "
            "terminated ones were stopped.",
            "none",
            Query(total_by("state", names.AGENTS), "{{state}}"),
            size=(12, 5),
            colours=state_colours,
        ),
        panels.numbers(
            "Open tickets by severity",
            "Escalations that are not closed. Critical and high ones page; "
            "medium and low ones go to the channel.",
            "none",
            Query(total_by("severity", names.TICKETS_OPEN), "{{severity}}"),
            size=(8, 5),
            colours=SEVERITIES.items(),
        ),
        panels.numbers(
            "Waiting for a user",
            "Agents that asked a question and rightly do nothing until it is answered. Never a stall.",
            "none",
            Query(total_by("", names.WORKER_WAITING, asks), "waiting"),
            size=(4, 5),
            colours=[("waiting", BLUE)],
        ),
        panels.agent_table(
            "Who needs me now",
            "One row an agent, worst state first. Click a name to see what that agent is doing.",
            Column("State", state_rank(), "none", states=True),
            Column(
                "Bad steps", highest_by("agent", names.WORKER_STEPS_SINCE_ACCEPT), "none", lines=BAD_STEPS
            ),
            Column("Since progress", age_by("agent", names.WORKER_LAST_PROGRESS), "s"),
            Column("Waits for a user", highest_by("agent", names.WORKER_WAITING, asks), "bool_yes_no"),
        ),
        panels.time_series(
            "Agents by state over time",
            "How the fleet's health developed. Many agents orange or red at once point at something "
            "shared: a provider, a tool, a network.",
            "none",
            Query(total_by("state", names.AGENTS), "{{state}}"),
            size=(8, 9),
            stacked=True,
            colours=state_colours,
        ),
    ]


def _detection() -> list[AnyPanel]:
    worst = f"topk(10, {highest_by('agent', names.WORKER_STEPS_SINCE_ACCEPT)})"
    return [
        panels.time_series(
            "Bad steps since the last accept",
            "The ten agents with the most steps judged bad (retry, escalate, error) since their last ACCEPT. "
            "The lines are where a warning, then a medium, high and critical ticket begins.",
            "none",
            Query(worst, "{{agent}}"),
            size=(6, 8),
            lines=BAD_STEPS,
        ),
        panels.counts(
            "Stalls by phase",
            "Agents that did nothing for too long, by what they were in the middle of.",
            Query(increase_by("phase", names.WORKER_STALLS), "{{phase}}"),
            size=(6, 8),
        ),
        panels.counts(
            "Findings by kind",
            "What the detectors saw: loops, streaks of errors, stalls, provider failures.",
            Query(increase_by("kind", names.FINDINGS), "{{kind}}"),
            size=(6, 8),
        ),
        panels.time_series(
            "Detection delay",
            "From the moment a threshold was crossed to the moment the state changed. "
            "The promise is 5 s; the dots are single detections and lead to their traces.",
            "s",
            *(
                Query(quantile_by("", quantile, names.DETECTION_DELAY), label, exemplars=True)
                for quantile, label in ((0.5, "half within"), (0.99, "99 % within"))
            ),
            size=(6, 8),
            lines=((5, ORANGE),),
        ),
    ]


def _decisions() -> list[AnyPanel]:
    return [
        panels.counts(
            "Tickets opened by cause",
            "New escalations. One condition is one ticket, however often it is seen.",
            Query(increase_by("cause", names.TICKETS), "{{cause}}"),
        ),
        panels.counts(
            "Triage by decision",
            "What the queen decided: dismiss, intervene, or bypass when triage did not answer in time.",
            Query(increase_by("decision", names.TRIAGE), "{{decision}}"),
        ),
        panels.counts(
            "Notifications by outcome",
            "What was handed to Alertmanager. Retries that go on mean that nobody is being told.",
            Query(increase_by("outcome", names.NOTIFICATIONS), "{{outcome}}"),
        ),
    ]


def _work() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Steps by verdict",
            "Steps per second over all agents. Work goes well when accept leads.",
            "ops",
            Query(rate_by("verdict", names.WORKER_STEPS), "{{verdict}}"),
            stacked=True,
            colours=[
                ("accept", GREEN),
                ("continue", BLUE),
                ("retry", YELLOW),
                ("escalate", ORANGE),
                ("error", RED),
            ],
        ),
        panels.time_series(
            "Step duration",
            "How long steps take; the dots are single steps and lead to their traces.",
            "s",
            *(
                Query(quantile_by("", quantile, names.WORKER_STEP_DURATION), label, exemplars=True)
                for quantile, label in ((0.5, "half within"), (0.95, "95 % within"), (0.99, "99 % within"))
            ),
        ),
        panels.time_series(
            "Tool errors",
            "Share of the calls of each tool that ended in an error or a time-out.",
            "percentunit",
            Query(
                share_by("tool", names.WORKER_TOOL_CALLS, f'outcome!="{names.ToolOutcome.OK}"'), "{{tool}}"
            ),
        ),
    ]


def _cost() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Tokens by model",
            "Tokens per second, input and output together.",
            "cps",
            Query(rate_by("model", names.WORKER_TOKENS), "{{model}}"),
            stacked=True,
        ),
        panels.counts(
            "Errors by class",
            "Errors of all agents by the class of the exception.",
            Query(increase_by("error_type", names.WORKER_ERRORS), "{{error_type}}"),
        ),
        panels.numbers(
            "Is the monitor itself alive?",
            "Time since the judge finished a check. While this grows, green above means nothing.",
            "s",
            Query(age_by("", names.JUDGE_LAST_CHECK), "since the judge's last check"),
            size=(4, 8),
            lines=JUDGE_AGE,
        ),
        panels.numbers(
            "Undelivered",
            "Notifications that are not yet with every Alertmanager.",
            "none",
            Query(total_by("", names.OUTBOX_PENDING), "pending"),
            size=(4, 8),
            colours=[("pending", RED)],
        ),
    ]
