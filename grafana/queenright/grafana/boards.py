"""All dashboards, from the general to the specific."""

from __future__ import annotations

import json
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from queenright.grafana import agent, breakers, cost, fleet, interventions, judge, monitor
from queenright.grafana.frame import dashboard
from queenright.grafana.links import CONSOLE
from queenright.grafana.thresholds import Thresholds
from queenright.health.settings import HealthSettings

_BOARDS: Final = {
    "fleet": fleet,
    "agent": agent,
    "judge": judge,
    "interventions": interventions,
    "breakers": breakers,
    "monitor": monitor,
    "cost": cost,
}


def boards(settings: HealthSettings, *, console: str = CONSOLE) -> dict[str, Dashboard]:
    """Return every dashboard by name."""
    at = Thresholds.of(settings)
    return {
        name: dashboard(name, board.TITLE, board.QUESTION, board.rows(at), console=console.rstrip("/"))
        for name, board in _BOARDS.items()
    }


def dashboards(settings: HealthSettings, *, console: str = CONSOLE) -> dict[str, str]:
    """Return the JSON of every dashboard by file name; deterministic for the same settings."""
    return {f"{name}.json": _render(board) for name, board in boards(settings, console=console).items()}


def _render(board: Dashboard) -> str:
    return json.dumps(board, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
