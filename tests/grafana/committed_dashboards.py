"""The committed dashboards, and their parts by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

Dashboard = dict[str, Any]
Panel = dict[str, Any]

FOLDER: Final = Path(__file__).parents[2] / "grafana" / "dashboards"
NAMES: Final = ("fleet", "agent", "judge", "interventions", "breakers", "monitor", "cost", "cluster")
"""Names of the dashboards, from general to specific."""


def load(name: str) -> Dashboard:
    """Return a committed dashboard."""
    board: Dashboard = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return board


def list_panels(board: Dashboard) -> list[Panel]:
    """Return the panels of a dashboard, without row headings."""
    return [item for item in board["panels"] if item["type"] != "row"]


def get_panel(board: Dashboard, title: str) -> Panel:
    """Return the panel with this title."""
    [panel] = [item for item in list_panels(board) if item["title"] == title]
    return panel


def get_threshold_values(panel: Panel) -> list[float]:
    """Return the values at which the panel changes its colour."""
    return [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]


def get_column_properties(panel: Panel, title: str) -> dict[str, Any]:
    """Return the properties of a table's column by their ids."""
    overrides = panel["fieldConfig"]["overrides"]
    return {
        setting["id"]: setting["value"]
        for override in overrides
        if override["matcher"]["options"] == title
        for setting in override["properties"]
    }


def list_data_links(panel: Panel) -> Iterator[dict[str, Any]]:
    """Yield the links behind the values of a panel."""
    for override in panel["fieldConfig"]["overrides"]:
        for setting in override["properties"]:
            if setting["id"] == "links":
                yield from setting["value"]


def list_links(panel: Panel) -> Iterator[dict[str, Any]]:
    """Yield all links of a panel: in its corner and behind its values."""
    yield from panel.get("links") or []
    yield from list_data_links(panel)
