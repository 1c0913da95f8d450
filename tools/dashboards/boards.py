"""All dashboards, from the general to the specific."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from queenright.grafana.export import DEFAULT_CONSOLE_URL, Thresholds, dashboard_text
from queenright.health.settings import HealthSettings
from tools.dashboards import agent, breakers, cluster, cost, fleet, interventions, judge, monitor
from tools.dashboards.frame import dashboard

_BOARDS: Final = {
    "fleet": fleet,
    "agent": agent,
    "judge": judge,
    "interventions": interventions,
    "breakers": breakers,
    "monitor": monitor,
    "cost": cost,
    "cluster": cluster,
}


def boards(settings: HealthSettings, *, console: str = DEFAULT_CONSOLE_URL) -> dict[str, Dashboard]:
    """Return every dashboard by name."""
    at = Thresholds.of(settings)
    return {
        name: dashboard(name, board.TITLE, board.QUESTION, board.rows(at), console=console.rstrip("/"))
        for name, board in _BOARDS.items()
    }


def dashboards(settings: HealthSettings, *, console: str = DEFAULT_CONSOLE_URL) -> dict[str, str]:
    """Return the JSON of every dashboard by file name; deterministic for the same settings."""
    return {
        f"{name}.json": dashboard_text(board, JSONEncoder)
        for name, board in boards(settings, console=console).items()
    }
