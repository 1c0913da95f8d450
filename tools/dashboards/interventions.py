"""The Interventions & Recovery dashboard."""

from __future__ import annotations

from queenright.grafana.export import BLUE, Thresholds
from queenright.instrumentation import names
from tools.dashboards import limits, panels, recorded
from tools.dashboards.firing import firing_alerts
from tools.dashboards.links import console, panel_link
from tools.dashboards.panels import AnyPanel, Query, Row
from tools.dashboards.promql import (
    SHOWN,
    buckets_of,
    counts_by,
    highest_by,
    increase_by,
    quantile_by,
    total_by,
)
from tools.dashboards.states import DELIVERIES, GREY, KINDS, OUTCOMES, RECOVERIES, SPANS, coloured_states
from tools.dashboards.tables import Column, series

TITLE = "Interventions & Recovery"
QUESTION = "Which interventions and recoveries ran, how fast, and did they help?"

_FINAL_OUTCOMES = 'outcome=~"completed|failed|exhausted"'
_SUCCESS = 'outcome="completed"'


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("Overview", _current_panels(at)),
        Row("Interventions and response time", _outcome_panels(at)),
        Row("Recovery", _recovery_panels()),
        Row("Recent activity", _event_panels()),
    ]


def _current_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.numbers(
            "Active recoveries",
            "Recoveries that have not ended: waiting, started, or being verified.",
            "none",
            Query(total_by("", names.RECOVERIES_ACTIVE), "active"),
            size=(4, 4),
            colours=[("active", BLUE)],
        ).links([panel_link("Recoveries", "recoveries")]),
        panels.numbers(
            "Recovery success rate",
            "Share of the recoveries ended in the time range after which the agent worked again.",
            "percentunit",
            Query(_success_rate_query(), "successful"),
            size=(4, 4),
        ),
        panels.numbers(
            "Interventions",
            "Interventions in the time range, by kind.",
            "short",
            Query(increase_by("kind", names.INTERVENTIONS, window=SHOWN), "{{kind}}"),
            size=(10, 4),
        ),
        panels.numbers(
            "Time to intervention (p90)",
            "The time within which 90 % of the problems got their first intervention, in the time range.",
            "s",
            Query(quantile_by("", 0.9, names.TIME_TO_INTERVENTION, window=SHOWN), "90 %"),
            size=(6, 4),
            lines=limits.INTERVENTION,
        ),
    ]


def _success_rate_query() -> str:
    ended = increase_by("", names.RECOVERIES, _FINAL_OUTCOMES, window=SHOWN)
    return f"{increase_by('', names.RECOVERIES, _SUCCESS, window=SHOWN)} / ({ended} > 0)"


def _outcome_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.counts(
            "Interventions by kind",
            "Nudge, escalate and terminate, in increasing severity, and recover.",
            Query(counts_by("kind", names.INTERVENTIONS), "{{kind}}"),
            size=(6, 8),
            colours=KINDS,
        ),
        panels.counts(
            "Interventions by outcome",
            "“expired” means that the agent did not fetch a nudge. After “unreachable” or “failed”, check "
            "the agent.",
            Query(f"{counts_by('outcome', names.INTERVENTIONS)} > 0", "{{outcome}}"),
            size=(6, 8),
            colours=OUTCOMES,
        ),
        panels.heat_map(
            "Time to first intervention",
            "Time from the start of a problem to the first intervention that took effect.",
            "s",
            Query(buckets_of(names.TIME_TO_INTERVENTION), "{{le}}", exemplars=True),
            size=(6, 8),
        ),
        panels.time_series(
            "Slow interventions against the objective",
            "Share of the problems without an intervention in time. The lines are the error budget and the "
            "burn rate that pages.",
            "percentunit",
            Query(highest_by("", recorded.slow_interventions("5m")), "5 min"),
            Query(highest_by("", recorded.slow_interventions("1h")), "1 h"),
            colours=SPANS,
            size=(6, 8),
            lines=limits.SLOW_SHARE,
        ),
    ]


def _recovery_panels() -> list[AnyPanel]:
    return [
        panels.counts(
            "Recoveries by outcome",
            "Started from a checkpoint or from the beginning; completed, failed, or given up (exhausted).",
            Query(counts_by("outcome", names.RECOVERIES), "{{outcome}}"),
            colours=RECOVERIES,
        ).links([panel_link("Recoveries", "recoveries")]),
        panels.time_series(
            "Active recoveries over time",
            "Recoveries that have not ended. If it stays constant, one waits for a person or its backoff.",
            "none",
            Query(total_by("", names.RECOVERIES_ACTIVE), "active"),
            is_stacked=True,
            colours=[("active", BLUE)],
        ),
        series(
            "Recoveries by outcome, total",
            "Recoveries in the time range. Click to list them in the console and to start one.",
            increase_by("outcome", names.RECOVERIES, window=SHOWN),
            {"outcome": "Outcome"},
            value=Column("Count", "", "short"),
            links={"outcome": [console("Recoveries", "recoveries")]},
            size=(8, 8),
        ),
    ]


def _event_panels() -> list[AnyPanel]:
    transitions = counts_by("from, to", names.STATE_TRANSITIONS)
    return [
        panels.counts(
            "Health events",
            "Health state changes of agents.",
            Query(f"{transitions} > 0", "{{from}} → {{to}}"),
            size=(6, 8),
            patterns=[
                (f"/→ {state}$/", colour) for state, colour in (*coloured_states(), ("terminated", GREY))
            ],
        ).links([panel_link("Event feed", "")]),
        panels.counts(
            "Notifications",
            "Notifications sent to Alertmanager, by outcome. While retries continue, nobody is notified.",
            Query(counts_by("outcome", names.NOTIFICATIONS), "{{outcome}}"),
            size=(6, 8),
            colours=DELIVERIES,
        ),
        series(
            "Events by type, total",
            "Events of interventions, breakers and recoveries in the time range. "
            "Click to open the event feed in the console.",
            f"{increase_by('type', names.EVENTS, _LISTED_TYPES, window=SHOWN)} > 0",
            {"type": "Event"},
            value=Column("Count", "", "short"),
            links={"type": [console("Event feed", "")]},
            size=(6, 8),
        ),
        firing_alerts(
            "Firing alerts", "Firing Queenright alerts. Click an agent to open its dashboard.", size=(6, 8)
        ),
    ]


_LISTED_TYPES = (
    'type=~"health_state_changed|nudge_sent|escalation_.+|termination_.+|agent_terminated|recovery_.+'
    '|circuit_breaker_state_changed|notification_.+"'
)
