"""Panels of latest values: large numbers, bars, tables."""

from __future__ import annotations

import math
from typing import Any

from tools.pictures.answers import Line
from tools.pictures.canvas import Canvas, width_of
from tools.pictures.colours import DIM, EDGE, LINK, PANEL, TEXT, at_steps, colour
from tools.pictures.units import written

Place = tuple[float, float, float, float]
Panel = dict[str, Any]
Cell = tuple[str, str, float | str]
"""What is written, in which colour, and what it is sorted by."""


def numbers(canvas: Canvas, place: Place, panel: Panel, lines: list[Line]) -> None:
    """Draw one coloured box a series with its name and latest value."""
    x, y, w, h = place
    defaults = panel["fieldConfig"]["defaults"]
    if not lines:
        canvas.text(x + w / 2, y + h / 2, defaults.get("noValue", "no data"), 22, DIM, align="center")
        return
    own = _properties(panel)
    wide = (w - 12) / len(lines)
    for number, line in enumerate(lines):
        steps = own.get(line.name, {}).get("thresholds", defaults["thresholds"])["steps"]
        fill = at_steps(line.last, steps)
        plain = fill == PANEL
        left = x + 6 + number * wide
        canvas.box(left, y + 2, wide - 4, h - 8, PANEL if plain else fill, edge=EDGE if plain else "none")
        words = [each["options"].get(f"{line.last:g}") for each in defaults.get("mappings", [])]
        result = next(
            (word["text"] for word in words if word), written(_whole(line.last, defaults), defaults["unit"])
        )
        size = min(34.0, h * 0.36, 34.0 * (wide - 20) / max(width_of(result, 34), 1))
        ink = TEXT if plain else "#0d0e12"
        canvas.text(
            left + wide / 2 - 2,
            y + h * 0.30,
            line.name,
            12.5,
            DIM if plain else ink,
            align="center",
            room=wide - 10,
        )
        canvas.text(left + wide / 2 - 2, y + h * 0.60, result, size, ink, align="center", bold=True)


def gauges(canvas: Canvas, place: Place, panel: Panel, lines: list[Line]) -> None:
    """Draw one bar a series, from nothing to the most."""
    x, y, w, h = place
    defaults = panel["fieldConfig"]["defaults"]
    tall = min((h - 8) / max(len(lines), 1), 46)
    left = max((width_of(line.name, 12.5) for line in lines), default=0) + 22
    right = 70
    for number, line in enumerate(lines):
        top = y + 2 + number * tall
        fill = at_steps(line.last, defaults["thresholds"]["steps"])
        room = w - left - right
        canvas.text(x + 8, top + tall / 2, line.name, 12.5)
        canvas.bar(x + left, top + 5, room, tall - 10, EDGE)
        canvas.bar(x + left, top + 5, room * min(line.last / defaults["max"], 1), tall - 10, fill)
        canvas.text(
            x + w - 10,
            top + tall / 2,
            written(line.last, defaults["unit"]),
            15,
            fill,
            align="right",
            bold=True,
        )


def table(canvas: Canvas, place: Place, panel: Panel, answers: list[list[Line]]) -> None:
    """Draw a table the way its transformations and overrides say."""
    heads, rows = _rows(panel, answers)
    x, y, w, h = place
    fits = int((h - 30) // 25)
    result = rows[:fits] if len(rows) <= fits else rows[: fits - 1]
    widths = [
        max([width_of(head, 12.5), *(width_of(row[n][0], 12.5) for row in result)], default=10) + 26
        for n, head in enumerate(heads)
    ]
    spare = max(0.0, w - 16 - sum(widths)) / max(len(widths), 1)
    scale = min(1.0, (w - 16) / max(sum(widths), 1))
    left = x + 8.0
    for n, head in enumerate(heads):
        wide = widths[n] * scale + spare
        canvas.text(left + 6, y + 14, head, 12.5, LINK, bold=True, room=wide - 10)
        for number, row in enumerate(result):
            cell, ink, _ = row[n]
            canvas.text(left + 6, y + 42 + number * 25, cell, 12.5, ink, room=wide - 10)
        left += wide
    for number in range(len(result) + 1):
        canvas.rule(x + 8, y + 28 + number * 25, w - 16)
    if len(result) < len(rows):
        canvas.text(x + 14, y + 42 + len(result) * 25, f"… {len(rows) - len(result)} more below", 12, DIM)


def _rows(panel: Panel, answers: list[list[Line]]) -> tuple[list[str], list[list[Cell]]]:
    options = panel["transformations"][-1]["options"]
    names = options["renameByName"]
    own = _properties(panel)
    joined = panel["transformations"][0]["options"].get("byField")
    found: dict[Any, dict[str, Any]] = {}
    for target, lines in zip(panel["targets"], answers, strict=True):
        for number, line in enumerate(lines):
            row = found.setdefault(line.labels.get(joined) if joined else number, {})
            row |= line.labels
            row[f"Value #{target['refId']}" if joined else "Value"] = line.last
    order = options["indexByName"]
    fields = sorted((each for each in names if not options["excludeByName"].get(each)), key=order.__getitem__)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    rows = [
        [_cell(row.get(each, ""), own.get(names[each], {}), unit) for each in fields]
        for row in found.values()
    ]
    heads = [names[each] for each in fields]
    for sort in reversed(panel.get("options", {}).get("sortBy") or []):
        column = heads.index(sort["displayName"])
        rows.sort(key=lambda row: str(row[0][2]))
        rows.sort(key=lambda row: _number(row[column][2]), reverse=sort["desc"])
    return heads, rows


def _whole(value: float, said: dict[str, Any]) -> float:
    return float(round(value)) if said.get("decimals") == 0 else value


def _number(value: float | str) -> float:
    return value if isinstance(value, float) else -math.inf


def _cell(value: float | str, own: dict[str, Any], unit: str) -> Cell:
    ink = LINK if own.get("links") else TEXT
    if isinstance(value, str):
        return value, ink, value
    for mapping in own.get("mappings", []):
        if result := mapping["options"].get(f"{value:g}"):
            return result["text"], colour(result["color"]), value
    if own.get("custom.cellOptions"):
        ink = at_steps(value, own.get("thresholds", {}).get("steps", []))
    return written(_whole(value, own), own.get("unit", unit)), ink, value


def _properties(panel: Panel) -> dict[str, dict[str, Any]]:
    return {
        override["matcher"]["options"]: {each["id"]: each["value"] for each in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
    }
