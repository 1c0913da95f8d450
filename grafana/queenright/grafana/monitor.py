"""The dashboard of the monitor itself: can I trust what I see?"""

from __future__ import annotations

from queenright.grafana import panels, recorded
from queenright.grafana.firing import firing_alerts
from queenright.grafana.judge import last_look
from queenright.grafana.panels import AnyPanel, Query, Row
from queenright.grafana.promql import (
    age_by,
    buckets_of,
    counts_by,
    quantile_by,
    rate_by,
    select,
    total_by,
    while_known,
)
from queenright.grafana.states import BLUE, DELIVERIES, GREEN, ORANGE, RED, WITHIN
from queenright.grafana.thresholds import Thresholds
from queenright.instrumentation import names

TITLE = "The monitor itself"
QUESTION = "Can I trust what I see? Whether the monitor looks, hears, decides and is able to tell."

_UP = 'up{job=~"$job", instance=~"$instance"}'


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("Is it alive?", _alive(at)),
        Row("Does it look?", _looks(at)),
        Row("Is somebody told?", _tells(at)),
        Row("What it does not see", _misses(at)),
    ]


def _alive(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.numbers(
            "Targets that answer",
            "Processes that Prometheus could scrape, and those it could not.",
            "none",
            Query(f"sum by () ({_UP} == bool 1)", "up"),
            Query(f"sum by () ({_UP} == bool 0)", "down"),
            size=(6, 4),
            colours=[("up", GREEN), ("down", RED)],
        ),
        last_look(at),
        panels.numbers(
            "Looked at",
            "How many workers the last sweep really looked at. 0 with agents known: nothing is watched.",
            "none",
            Query(total_by("", names.WORKERS_EVALUATED), "workers"),
            size=(4, 4),
        ),
        panels.numbers(
            "Undelivered",
            "Notifications that are not yet with every Alertmanager.",
            "none",
            Query(total_by("", names.OUTBOX_PENDING), "pending"),
            size=(4, 4),
            colours=[("pending", ORANGE)],
        ),
        panels.numbers(
            "Oldest undelivered",
            "How long the oldest of them has waited. Red: somebody should have been told long ago.",
            "s",
            Query(f"{age_by('', names.OUTBOX_OLDEST)} or {while_known(0, names.OUTBOX_OLDEST)}", "waits"),
            size=(6, 4),
            lines=at.outbox,
        ),
    ]


def _looks(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.time_series(
            "Workers looked at",
            "By each sweep, beside the agents that are known. An agent may have several sessions.",
            "none",
            Query(total_by("", names.WORKERS_EVALUATED), "workers looked at"),
            Query(total_by("", names.AGENTS), "agents known"),
            size=(6, 8),
        ),
        panels.counts(
            "Health checks",
            "Sweeps over all workers, by how they ended.",
            Query(counts_by("outcome", names.HEALTH_CHECKS), "{{outcome}}"),
            size=(6, 8),
            colours=[("ok", GREEN), ("error", RED)],
        ),
        panels.time_series(
            "Duration of a health check",
            "How long a sweep over all workers takes.",
            "s",
            Query(quantile_by("", 0.5, names.HEALTH_CHECK_DURATION), "half within"),
            Query(quantile_by("", 0.99, names.HEALTH_CHECK_DURATION), "99 % within"),
            colours=WITHIN,
            size=(6, 8),
        ),
        panels.heat_map(
            "Detection delay",
            "From the moment a threshold was crossed to the moment the state changed. The promise is 5 s.",
            "s",
            Query(buckets_of(names.DETECTION_DELAY), "{{le}}"),
            size=(6, 8),
        ),
    ]


def _tells(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.counts(
            "Notifications by outcome",
            "What was handed to Alertmanager. Retries that go on mean that nobody is being told.",
            Query(counts_by("outcome", names.NOTIFICATIONS), "{{outcome}}"),
            colours=DELIVERIES,
        ),
        panels.time_series(
            "Undelivered over time",
            "Notifications that are not yet with every Alertmanager. A hill is a fault that passed.",
            "none",
            Query(total_by("", names.OUTBOX_PENDING), "pending"),
            stacked=True,
            colours=[("pending", ORANGE)],
        ),
        firing_alerts(
            "Alerts about the monitor and the fleet",
            "What fires of that which goes straight to whoever is on call.",
            source=names.SOURCE_MONITOR,
        ),
    ]


def _misses(at: Thresholds) -> list[AnyPanel]:
    ahead = " or ".join(
        f"max by (agent) ({select(metric)} - time())"
        for metric in (recorded.LAST_HEARTBEAT, recorded.LAST_ACTIVITY)
    )
    return [
        panels.time_series(
            "Events",
            "Events a second on the bus, by type; the ten most frequent.",
            "ops",
            Query(f"topk(10, {rate_by('type', names.EVENTS)})", "{{type}}"),
            stacked=True,
            size=(6, 8),
        ),
        panels.time_series(
            "Spans received",
            "Over OTLP, by what became of them. Rejected: the sender's configuration.",
            "ops",
            Query(rate_by("outcome", names.INGEST_SPANS), "{{outcome}}"),
            stacked=True,
            colours=[("accepted", GREEN), ("ignored", BLUE), ("rejected", RED)],
            size=(6, 8),
        ),
        panels.counts(
            "Telemetry dropped",
            "Spans, records and lines given up, by agents and by the service: what was in them nobody saw.",
            Query(counts_by("signal", names.TELEMETRY_DROPPED), "{{signal}}"),
            size=(6, 8),
        ),
        panels.counts(
            "Events missed by slow listeners",
            "Never tickets or interventions. A page that lags shows less than there was.",
            Query(counts_by("subscriber", names.EVENT_BUS_DROPPED), "{{subscriber}}"),
            size=(6, 8),
        ),
        panels.counts(
            "Names folded into “other”",
            "New label values beyond a bound. Their numbers are in the sums, not by name.",
            Query(counts_by("metric", names.SERIES_LIMITED), "{{metric}}"),
        ),
        panels.time_series(
            "Series left out",
            "What has no series of its own now, because there are too many of its kind: healthy agents and "
            "closed breakers first. While this is above 0, tables show fewer rows than there are.",
            "none",
            Query(total_by("metric", names.SERIES_LEFT_OUT), "{{metric}}"),
        ),
        panels.time_series(
            "Clocks ahead of Prometheus",
            "By how much a worker's time stamps lie in the future; the ten furthest. From the line on, what "
            "it says is timed by its arrival.",
            "s",
            Query(f"topk(10, clamp_min({ahead}, 0))", "{{agent}}"),
            lines=at.clock,
        ),
    ]
