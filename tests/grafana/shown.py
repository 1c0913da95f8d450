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
"""From the general to the specific."""


def load(name: str) -> Dashboard:
    """Return a committed dashboard."""
    loaded: Dashboard = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def panels(board: Dashboard) -> list[Panel]:
    """Return the panels of a dashboard without the headings between them."""
    return [item for item in board["panels"] if item["type"] != "row"]


def panel(board: Dashboard, title: str) -> Panel:
    """Return the panel with this title."""
    [found] = [item for item in panels(board) if item["title"] == title]
    return found


def lines(shown: Panel) -> list[float]:
    """Return the values from which on the panel has another colour."""
    return [step["value"] for step in shown["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]


def column(shown: Panel, title: str) -> dict[str, Any]:
    """Return the properties of a table's column by their ids."""
    overrides = shown["fieldConfig"]["overrides"]
    return {
        each["id"]: each["value"]
        for override in overrides
        if override["matcher"]["options"] == title
        for each in override["properties"]
    }


def data_links(shown: Panel) -> Iterator[dict[str, Any]]:
    """Yield the links behind the values of a panel."""
    for override in shown["fieldConfig"]["overrides"]:
        for each in override["properties"]:
            if each["id"] == "links":
                yield from each["value"]


def links(shown: Panel) -> Iterator[dict[str, Any]]:
    """Yield all links of a panel: in its corner and behind its values."""
    yield from shown.get("links") or []
    yield from data_links(shown)
