"""The table of our alerts that fire, on several dashboards."""

from __future__ import annotations

from grafana_foundation_sdk.builders import table

from queenright.grafana.links import agent_dashboard
from queenright.grafana.tables import series
from queenright.instrumentation import names

FIRING = f'ALERTS{{alertstate="firing", alertname=~"{names.ALERT_PREFIX}.+", severity!="none"}}'
"""Our alerts that fire. Alerts have the job of what they are about, or none: the variables do not apply."""


def firing_alerts(
    title: str, description: str, *, source: str = "", size: tuple[int, int] = (8, 8)
) -> table.Panel:
    """Return the alerts that fire now; with ``source``, only those of the rules or of the monitor."""
    selector = f'{FIRING[:-1]}, source="{source}"}}' if source else FIRING
    return series(
        title,
        description,
        f"max by (severity, alertname, agent) ({selector})",
        {"severity": "Severity", "alertname": "Alert", "agent": "Agent"},
        links={"agent": [agent_dashboard()]},
        size=size,
    )
