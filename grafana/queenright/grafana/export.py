"""The dashboards with the thresholds of the settings, and with links to their console."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from queenright.grafana.files import dashboards_folder
from queenright.grafana.thresholds import Lines, Thresholds
from queenright.health.settings import HealthSettings

CONSOLE: Final = "http://127.0.0.1:8420"
"""The console's URL in the committed dashboards, the default of their variable ``console``."""


def render_dashboards(settings: HealthSettings, *, console: str = CONSOLE) -> dict[str, str]:
    """
    Return the JSON of every dashboard by file name.

    The committed files have the default thresholds: each of their threshold lines is replaced by that of the
    settings.
    """
    default, own = Thresholds.of(HealthSettings()), Thresholds.of(settings)
    replaced = {getattr(default, field.name): getattr(own, field.name) for field in fields(Thresholds)}
    console_text = json.dumps(console.rstrip("/"))
    return {
        path.name: dashboard_text(
            json.loads(
                path.read_text(encoding="utf-8").replace(json.dumps(CONSOLE), console_text),
                object_hook=lambda node: _with_lines(node, replaced),
            )
        )
        for path in sorted(dashboards_folder().glob("*.json"))
    }


def dashboard_text(board: Any, encoder: type[json.JSONEncoder] | None = None) -> str:
    """Return a dashboard as it is written to a file: deterministic for equal dashboards."""
    return json.dumps(board, cls=encoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _with_lines(node: dict[str, Any], replaced: Mapping[Lines, Lines]) -> dict[str, Any]:
    """Return the object, with its threshold lines replaced; the first step is the colour below them."""
    if node.get("mode") != "absolute" or "steps" not in node:
        return node
    below, *steps = node["steps"]
    lines = tuple((step["value"], step["color"]) for step in steps)
    own = replaced.get(lines, lines)
    return {**node, "steps": [below, *({"color": colour, "value": value} for value, colour in own)]}
