"""The dashboard of interventions and recovery: what was done, and did it help?"""

from __future__ import annotations

from queenright.grafana import panels, recorded
from queenright.grafana.firing import firing_alerts
from queenright.grafana.links import console, panel_link
from queenright.grafana.panels import AnyPanel, Query, Row
from queenright.grafana.promql import (
    SHOWN,
    buckets_of,
    counts_by,
    highest_by,
    increase_by,
    quantile_by,
    total_by,
)
from queenright.grafana.states import BLUE, DELIVERIES, KINDS, OUTCOMES, RECOVERIES, SPANS, coloured_states
from queenright.grafana.tables import Column, series
from queenright.grafana.thresholds import Thresholds
from queenright.instrumentation import names

TITLE = "Interventions & Recovery"
QUESTION = "What was done about troubled agents, how soon, and did it help?"

_ENDED = 'outcome=~"completed|failed|exhausted"'
_WENT_WELL = 'outcome="completed"'


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("What goes on?", _now(at)),
        Row("What was done, and how soon", _done(at)),
        Row("Recovery", _recovery()),
        Row("What happened lately", _feed()),
    ]


def _now(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.numbers(
            "Recoveries that go on",
            "Tries to bring an agent back that have not ended: waiting, begun, or watched.",
            "none",
            Query(total_by("", names.RECOVERIES_ACTIVE), "active"),
            size=(4, 4),
            colours=[("active", BLUE)],
        ).links([panel_link("Active and past recoveries; start one", "recoveries")]),
        panels.numbers(
            "Recoveries that went well",
            "Share of the recoveries that ended in the time shown after which the agent worked again.",
            "percentunit",
            Query(_success(), "of those ended"),
            size=(4, 4),
        ),
        panels.numbers(
            "Interventions",
            "What was done in the time shown, by kind.",
            "short",
            Query(increase_by("kind", names.INTERVENTIONS, window=SHOWN), "{{kind}}"),
            size=(10, 4),
        ),
        panels.numbers(
            "First help within",
            "The time within which nine of ten troubles had something done about them, in the time shown.",
            "s",
            Query(quantile_by("", 0.9, names.TIME_TO_INTERVENTION, window=SHOWN), "90 %"),
            size=(6, 4),
            lines=at.intervention,
        ),
    ]


def _success() -> str:
    ended = increase_by("", names.RECOVERIES, _ENDED, window=SHOWN)
    return f"{increase_by('', names.RECOVERIES, _WENT_WELL, window=SHOWN)} / ({ended} > 0)"


def _done(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.counts(
            "Interventions by kind",
            "From the gentlest to the hardest: nudge, escalate, terminate; and recover.",
            Query(counts_by("kind", names.INTERVENTIONS), "{{kind}}"),
            size=(6, 8),
            colours=KINDS,
        ),
        panels.counts(
            "Interventions by outcome",
            "What became of them. Expired: a nudge that nobody fetched. "
            "Unreachable, failed: look at the agent.",
            Query(f"{counts_by('outcome', names.INTERVENTIONS)} > 0", "{{outcome}}"),
            size=(6, 8),
            colours=OUTCOMES,
        ),
        panels.heat_map(
            "Time to the first intervention",
            "From the beginning of a trouble to the first thing done about it that reached somebody.",
            "s",
            Query(buckets_of(names.TIME_TO_INTERVENTION), "{{le}}", exemplars=True),
            size=(6, 8),
        ),
        panels.time_series(
            "Slow help against the objective",
            "Share of the troubles for which nothing was done in time. The lines are the share that may be "
            "slow, and the share that spends a month's allowance so fast that it pages.",
            "percentunit",
            Query(highest_by("", recorded.slow_interventions("5m")), "five minutes"),
            Query(highest_by("", recorded.slow_interventions("1h")), "an hour"),
            colours=SPANS,
            size=(6, 8),
            lines=at.slow_share,
        ),
    ]


def _recovery() -> list[AnyPanel]:
    return [
        panels.counts(
            "Recoveries by outcome",
            "Begun from a checkpoint or from the start; completed, failed, or given up (exhausted).",
            Query(counts_by("outcome", names.RECOVERIES), "{{outcome}}"),
            colours=RECOVERIES,
        ).links([panel_link("Active and past recoveries; start one", "recoveries")]),
        panels.time_series(
            "Recoveries that go on, over time",
            "Tries that have not ended. One that stays: it waits for somebody, or for its backoff.",
            "none",
            Query(total_by("", names.RECOVERIES_ACTIVE), "active"),
            stacked=True,
            colours=[("active", BLUE)],
        ),
        series(
            "Recoveries, counted",
            "How many in the time shown. Click to see each of them in the console, and to start one.",
            increase_by("outcome", names.RECOVERIES, window=SHOWN),
            {"outcome": "Outcome"},
            value=Column("How many", "", "short"),
            links={"outcome": [console("Active and past recoveries; start one", "recoveries")]},
            size=(8, 8),
        ),
    ]


def _feed() -> list[AnyPanel]:
    changed = counts_by("from, to", names.STATE_TRANSITIONS)
    return [
        panels.counts(
            "Health events",
            "Agents that changed from one health state to another.",
            Query(f"{changed} > 0", "{{from}} → {{to}}"),
            size=(6, 8),
            patterns=[(f"/→ {state}$/", colour) for state, colour in coloured_states()],
        ).links([panel_link("The feed of events", "")]),
        panels.counts(
            "Notifications",
            "What was handed to Alertmanager. Retries that go on mean that nobody is being told.",
            Query(counts_by("outcome", names.NOTIFICATIONS), "{{outcome}}"),
            size=(6, 8),
            colours=DELIVERIES,
        ),
        series(
            "Events, counted",
            "What interventions, breakers and recoveries said in the time shown. "
            "Click to read the feed in the console.",
            f"{increase_by('type', names.EVENTS, _TOLD, window=SHOWN)} > 0",
            {"type": "Event"},
            value=Column("How many", "", "short"),
            links={"type": [console("The feed of events", "")]},
            size=(6, 8),
        ),
        firing_alerts(
            "Firing alerts", "Our alerts that fire. Click an agent to see what it does.", size=(6, 8)
        ),
    ]


_TOLD = (
    'type=~"health_state_changed|nudge_sent|escalation_.+|termination_.+|agent_terminated|recovery_.+'
    '|circuit_breaker_state_changed|notification_.+"'
)
