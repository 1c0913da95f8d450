"""The Monitor dashboard: the health of Queenright itself."""

from __future__ import annotations

from queenright.grafana.export import BLUE, ORANGE, RED, Thresholds
from queenright.instrumentation import names
from tools.dashboards import limits, panels, recorded
from tools.dashboards.firing import firing_alerts
from tools.dashboards.judge import last_check
from tools.dashboards.panels import AnyPanel, Query, Row
from tools.dashboards.promql import (
    age_by,
    buckets_of,
    counts_by,
    quantile_by,
    rate_by,
    select,
    total_by,
    while_known,
)
from tools.dashboards.states import DELIVERIES, GREEN, WITHIN, known_agents

TITLE = "Monitor"
QUESTION = "Is Queenright itself healthy? Health checks, telemetry, decisions and notification delivery."

_UP = 'up{job=~"$job", instance=~"$instance"}'


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("Availability", _status_panels(at)),
        Row("Health checks and detection", _check_panels(at)),
        Row("Notification delivery", _delivery_panels(at)),
        Row("Dropped data and limits", _loss_panels(at)),
    ]


def _status_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.numbers(
            "Scrape targets",
            "Processes that Prometheus can scrape, and those that it cannot.",
            "none",
            Query(f"sum by () ({_UP} == bool 1)", "up"),
            Query(f"sum by () ({_UP} == bool 0)", "down"),
            size=(6, 4),
            colours=[("up", GREEN), ("down", RED)],
        ),
        last_check(at),
        panels.numbers(
            "Evaluated workers",
            "Workers evaluated by the last sweep. 0 while agents are known means that nothing is monitored.",
            "none",
            Query(total_by("", names.WORKERS_EVALUATED), "workers"),
            size=(4, 4),
        ),
        panels.numbers(
            "Undelivered",
            "Notifications that some Alertmanager has not accepted yet.",
            "none",
            Query(total_by("", names.OUTBOX_PENDING), "pending"),
            size=(4, 4),
            colours=[("pending", ORANGE)],
        ),
        panels.numbers(
            "Oldest undelivered",
            "Age of the oldest undelivered notification. At red, people should have been notified long ago.",
            "s",
            Query(f"{age_by('', names.OUTBOX_OLDEST)} or {while_known(0, names.OUTBOX_OLDEST)}", "waits"),
            size=(6, 4),
            lines=limits.OUTBOX,
        ),
    ]


def _check_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.time_series(
            "Workers evaluated",
            "Workers evaluated per sweep, and known agents. An agent may have several sessions.",
            "none",
            Query(total_by("", names.WORKERS_EVALUATED), "workers evaluated"),
            Query(known_agents(), "known agents"),
            size=(6, 8),
        ),
        panels.counts(
            "Health checks",
            "Sweeps over all workers, by outcome.",
            Query(counts_by("outcome", names.HEALTH_CHECKS), "{{outcome}}"),
            size=(6, 8),
            colours=[("ok", GREEN), ("error", RED)],
        ),
        panels.time_series(
            "Duration of a health check",
            "How long a sweep over all workers takes.",
            "s",
            Query(quantile_by("", 0.5, names.HEALTH_CHECK_DURATION), "p50"),
            Query(quantile_by("", 0.99, names.HEALTH_CHECK_DURATION), "p99"),
            colours=WITHIN,
            size=(6, 8),
        ),
        panels.heat_map(
            "Detection delay",
            "Time from a crossed threshold to the state change. The objective is 5 s.",
            "s",
            Query(buckets_of(names.DETECTION_DELAY), "{{le}}"),
            size=(6, 8),
        ),
    ]


def _delivery_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.counts(
            "Notifications by outcome",
            "Notifications sent to Alertmanager, by outcome. While retries continue, nobody is notified.",
            Query(counts_by("outcome", names.NOTIFICATIONS), "{{outcome}}"),
            colours=DELIVERIES,
        ),
        panels.time_series(
            "Undelivered over time",
            "Notifications that some Alertmanager has not accepted yet. A short rise is a temporary failure.",
            "none",
            Query(total_by("", names.OUTBOX_PENDING), "pending"),
            is_stacked=True,
            colours=[("pending", ORANGE)],
        ),
        firing_alerts(
            "Alerts about the monitor and the fleet",
            "Firing alerts that go directly to on-call.",
            source=names.SOURCE_MONITOR,
        ),
    ]


def _loss_panels(at: Thresholds) -> list[AnyPanel]:
    ahead = " or ".join(
        f"max by (agent) ({select(metric)} - time())"
        for metric in (recorded.LAST_HEARTBEAT, recorded.LAST_ACTIVITY)
    )
    return [
        panels.time_series(
            "Events",
            "Events per second on the bus, by type; the ten most frequent.",
            "ops",
            Query(f"topk(10, {rate_by('type', names.EVENTS)})", "{{type}}"),
            is_stacked=True,
            size=(6, 8),
        ),
        panels.time_series(
            "Spans received",
            "Spans received over OTLP, by outcome. For rejected spans, check the sender's configuration.",
            "ops",
            Query(rate_by("outcome", names.INGEST_SPANS), "{{outcome}}"),
            is_stacked=True,
            colours=[("accepted", GREEN), ("ignored", BLUE), ("rejected", RED)],
            size=(6, 8),
        ),
        panels.counts(
            "Telemetry dropped",
            "Spans, log records and step log lines dropped by agents and by the service.",
            Query(counts_by("signal", names.TELEMETRY_DROPPED), "{{signal}}"),
            size=(6, 8),
        ),
        panels.counts(
            "Events dropped for slow subscribers",
            "Events that a slow subscriber missed. Tickets and interventions are never among them.",
            Query(counts_by("subscriber", names.EVENT_BUS_DROPPED), "{{subscriber}}"),
            size=(6, 8),
        ),
        panels.counts(
            "Label values replaced by “other”",
            "New label values beyond a limit. They count in totals but have no separate series.",
            Query(counts_by("metric", names.SERIES_LIMITED), "{{metric}}"),
        ),
        panels.time_series(
            "Series left out",
            "Agents and breakers without separate series, because there are too many of them: first "
            "healthy agents and closed breakers. While this is above 0, tables do not show all rows.",
            "none",
            Query(total_by("metric", names.SERIES_LEFT_OUT), "{{metric}}"),
        ),
        panels.time_series(
            "Clocks ahead of Prometheus",
            "How far a worker's timestamps are in the future; the top ten. Above the line, its events are "
            "timed by their arrival.",
            "s",
            Query(f"topk(10, clamp_min({ahead}, 0))", "{{agent}}"),
            lines=limits.CLOCK,
        ),
    ]
