"""The table of firing Queenright alerts, used on several dashboards."""

from __future__ import annotations

from grafana_foundation_sdk.builders import table

from queenright.instrumentation import names
from tools.dashboards.links import agent_dashboard
from tools.dashboards.tables import series

FIRING = f'ALERTS{{alertstate="firing", alertname=~"{names.ALERT_PREFIX}.+", severity!="none"}}'
"""Firing Queenright alerts. Dashboard variables do not apply, because alerts may have no ``job`` label."""


def firing_alerts(
    title: str, description: str, *, source: str = "", size: tuple[int, int] = (8, 8)
) -> table.Panel:
    """Return a table of firing alerts; with ``source``, only those of the rules or of the monitor."""
    selector = f'{FIRING[:-1]}, source="{source}"}}' if source else FIRING
    return series(
        title,
        description,
        f"max by (severity, alertname, agent) ({selector})",
        {"severity": "Severity", "alertname": "Alert", "agent": "Agent"},
        links={"agent": [agent_dashboard()]},
        size=size,
    )
