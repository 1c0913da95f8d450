"""A whole dashboard on one page, as it is laid out."""

from __future__ import annotations

from typing import Any, Final

from tools.pictures import plots, values
from tools.pictures.answers import Answers
from tools.pictures.canvas import Canvas, width_of
from tools.pictures.colours import DIM, EDGE, LINK, PANEL, TEXT

WIDTH: Final = 1680
_HEAD: Final = 104
_FOOT: Final = 34
_ROW: Final = 36
"""Pixels of one unit of Grafana's grid."""
_GAP: Final = 8

CAPTION: Final = "drawn from the queries, not a screenshot of Grafana"


def draw(board: dict[str, Any], answers: Answers) -> Canvas:
    """Return the dashboard with what the story answers."""
    tall = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    canvas = Canvas(WIDTH, _HEAD + tall * _ROW + _FOOT)
    _head(canvas, board, answers)
    marks = answers.marks(board)
    for panel in board["panels"]:
        at = panel["gridPos"]
        unit = (WIDTH - 2 * _GAP) / 24
        x, y = _GAP + at["x"] * unit, _HEAD + at["y"] * _ROW
        w, h = at["w"] * unit, at["h"] * _ROW
        if panel["type"] == "row":
            canvas.text(x + 10, y + h / 2 + 1, f"⌄  {panel['title']}", 15, TEXT, bold=True)
            continue
        canvas.box(x + _GAP / 2, y + _GAP / 2, w - _GAP, h - _GAP, PANEL, edge=EDGE)
        canvas.text(x + 14, y + 21, panel["title"], 13.5, TEXT, bold=True, room=w - 40)
        if panel.get("links"):
            canvas.text(x + w - 16, y + 21, "↗", 13, LINK, align="right")
        place = (x + _GAP / 2, y + 36, w - _GAP, h - 36 - _GAP / 2)
        _panel(canvas, place, panel, answers.lines(board, panel), marks, answers)
    foot = (
        f"{board['title']}: {CAPTION}. Asked of a real Prometheus after {answers.window.seconds:.0f} seconds "
        f"in which the tests let everything happen once; rates over 10 s, bars of {answers.window.bars:g} s."
    )
    canvas.text(_GAP + 8, _HEAD + tall * _ROW + _FOOT / 2, foot, 12.5, DIM)
    return canvas


def _panel(
    canvas: Canvas, place: values.Place, panel: dict[str, Any], found: list[Any], marks: Any, answers: Answers
) -> None:
    lines = [line for each in found for line in each]
    match panel["type"]:
        case "stat":
            values.numbers(canvas, place, panel, lines)
        case "bargauge":
            values.gauges(canvas, place, panel, lines)
        case "table":
            values.table(canvas, place, panel, found)
        case _ if not lines:
            x, y, w, h = place
            canvas.text(x + w / 2, y + h / 2, "No data", 16, DIM, align="center")
        case "timeseries":
            plots.time_series(canvas, place, panel, lines, marks, answers.window)
        case "state-timeline":
            plots.state_history(canvas, place, panel, lines, marks, answers.window)
        case "heatmap":
            plots.heat_map(canvas, place, panel, lines, marks, answers.window)
        case other:
            raise AssertionError(
                f"{panel['title']!r} is a {other}, which nothing draws yet; add it to plots.py"
            )


def _head(canvas: Canvas, board: dict[str, Any], answers: Answers) -> None:
    canvas.text(_GAP + 8, 28, board["title"], 21, TEXT, bold=True)
    canvas.text(_GAP + 8, 58, board["description"], 14, DIM, room=WIDTH - 60)
    x = _GAP + 8.0
    for variable in board["templating"]["list"]:
        label = variable["label"]
        chosen = answers.variables.get(variable["name"], "").strip("()").replace("|", " + ") or {
            "datasource": "Prometheus",
            "textbox": str(variable.get("query")),
        }.get(variable["type"], "All")
        wide = width_of(label, 12.5) + width_of(chosen, 12.5) + 38
        canvas.box(x, 76, wide, 24, PANEL, edge=EDGE)
        canvas.text(x + 9, 88.5, label, 12.5, LINK)
        canvas.text(x + width_of(label, 12.5) + 24, 88.5, chosen, 12.5)
        x += wide + 8
    wide = width_of(CAPTION, 12.5) + 24
    canvas.box(WIDTH - wide - 16, 16, wide, 26, "#3a2c10", edge="#8a6a1f")
    canvas.text(WIDTH - wide / 2 - 16, 29.5, CAPTION, 12.5, "#ffd27a", align="center")
