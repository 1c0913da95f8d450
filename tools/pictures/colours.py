"""The colours of the pictures: Grafana's names, and a palette for series that have none of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

PAGE, PANEL, EDGE, GRID = "#111217", "#181b1f", "#25282e", "#2c3036"
TEXT, DIM, LINK = "#d5d8e0", "#8e94a3", "#6e9fff"

NAMED: Final = {
    "green": "#73bf69",
    "blue": "#5794f2",
    "yellow": "#f2cc0c",
    "orange": "#ff9830",
    "red": "#f2495c",
    "purple": "#b877d9",
    "transparent": PANEL,
}
_PALETTE: Final = (
    "#73bf69",
    "#f2cc0c",
    "#8ab8ff",
    "#ff9830",
    "#ff7383",
    "#5794f2",
    "#ca95e5",
    "#96d98d",
    "#ffee52",
    "#c0d8ff",
    "#ffb357",
    "#6fd0d8",
)


def colour(name: str) -> str:
    """Return a colour for matplotlib."""
    return NAMED.get(name, name)


def of_series(names: list[str], fixed: Mapping[str, str]) -> dict[str, str]:
    """Return a colour for each series: its own by name or ``/pattern/``, else one that goes by its name."""
    found: dict[str, str] = {}
    for which, its in fixed.items():
        own = re.compile(which.strip("/")) if which.startswith("/") else re.compile(f"^{re.escape(which)}$")
        found |= {name: colour(its) for name in names if own.search(name)}
    free = [each for each in _PALETTE if each not in found.values()] or list(_PALETTE)
    for name in names:
        if name not in found:
            at = crc32(name.encode()) % len(free)
            found[name] = free.pop(at)
            free = free or list(_PALETTE)
    return found


def at_steps(value: float, steps: list[dict[str, Any]]) -> str:
    """Return the colour of the highest threshold that ``value`` reaches."""
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return colour(reached[-1]) if reached else TEXT
