"""Panels over time: lines, stacked areas and bars, histories of states, heat maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tools.pictures.answers import Line, Mark, Window
from tools.pictures.canvas import Canvas, width_of
from tools.pictures.colours import DIM, GRID, TEXT, colour, of_series
from tools.pictures.units import written

Place = tuple[float, float, float, float]
Panel = dict[str, Any]

_ORANGES = LinearSegmentedColormap.from_list("heat", ["#5a2d0c", "#d9730d", "#ffd9a8"])
_LEGEND = 11.5


def time_series(
    canvas: Canvas, place: Place, panel: Panel, lines: list[Line], marks: Sequence[Mark], window: Window
) -> None:
    """Draw lines, stacked areas or stacked bars, with thresholds, marks and the dots of exemplars."""
    custom, unit = panel["fieldConfig"]["defaults"]["custom"], panel["fieldConfig"]["defaults"]["unit"]
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    bars = custom.get("drawStyle") == "bars"
    names = [line.name for line in lines]
    colours = of_series(names, _fixed(panel))
    x, y, w, h = place
    rows = _legend_rows(names, w)
    left = 62 if unit in ("ops", "s") else 92 if unit.startswith("suffix:") else 48
    axes = canvas.plot(x + left, y + 4, w - left - 6, h - 26 - 18 * len(rows))
    if stacked:
        _stack(axes, lines, colours, bars=bars, step=window.bars)
    else:
        for line in lines:
            times, values = zip(*line.points, strict=True)
            axes.plot(times, values, color=colours[line.name], linewidth=1.4)
            axes.fill_between(times, values, 0, color=colours[line.name], alpha=0.09, linewidth=0)
    for line in lines:
        for at, value in line.exemplars:
            axes.plot([at], [value], marker="D", markersize=3, color="#9fc6ff", zorder=5, clip_on=True)
    _scale(axes, panel, unit, [line for line in lines if line.points], stacked=stacked)
    _over_time(axes, window, marks)
    _legend(canvas, (x + 8, y + h - 18 * len(rows) - 2), rows, colours)


def state_history(
    canvas: Canvas, place: Place, panel: Panel, lines: list[Line], marks: Sequence[Mark], window: Window
) -> None:
    """Draw which state each series was in, one bar a series."""
    words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    x, y, w, h = place
    lines = sorted(lines, key=lambda line: line.name)[: max(1, int((h - 22) // 17))]
    left = min(max((width_of(line.name, 11.5) for line in lines), default=0) + 18, w / 3)
    axes = canvas.plot(x + left, y + 2, w - left - 8, h - 24)
    axes.grid(False)
    for number, line in enumerate(lines):
        for begin, end, value in _stretches(line, window):
            result = words.get(f"{value:g}", {"text": f"{value:g}", "color": DIM})
            axes.barh(number, end - begin, left=begin, height=0.84, color=colour(result["color"]), alpha=0.8)
            room = (end - begin) / window.seconds * (w - left - 8)
            if width_of(result["text"], 10.5) + 8 < room:
                axes.text(begin + 0.4, number, result["text"], fontsize=7.6, color="#0d0e12", va="center")
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), [line.name for line in lines])
    axes.tick_params(axis="y", labelcolor=TEXT)
    _over_time(axes, window, marks)


def heat_map(
    canvas: Canvas, place: Place, panel: Panel, lines: list[Line], marks: Sequence[Mark], window: Window
) -> None:
    """Draw how many observations fell into each bucket of a histogram."""
    unit = panel["options"]["yAxis"]["unit"]
    bounds = sorted({float(line.labels["le"]) for line in lines})
    times = sorted({at for line in lines for at, _ in line.points})
    grid = np.zeros((len(bounds), len(times)))
    for line in lines:
        for at, value in line.points:
            grid[bounds.index(float(line.labels["le"])), times.index(at)] = value
    counts = np.diff(np.vstack([np.zeros(len(times)), grid]), axis=0)
    seen = np.nonzero(counts.max(axis=1) > 1e-9)[0]
    low, high = (max(0, seen[0] - 1), min(len(bounds), seen[-1] + 2)) if len(seen) else (0, len(bounds))
    x, y, w, h = place
    axes = canvas.plot(x + 62, y + 4, w - 70, h - 26)
    result = np.ma.masked_less_equal(counts[low:high], 1e-9)
    edges = [*times, times[-1] + window.step]
    axes.pcolormesh(edges, range(high - low + 1), result, cmap=_ORANGES, linewidth=0)
    labels = ["∞" if math.isinf(bound) else written(bound, unit) for bound in bounds[low:high]]
    every = max(1, math.ceil(len(labels) / 8))
    axes.set_yticks([n + 1 for n in range(0, len(labels), every)], labels[::every])
    axes.set_ylim(0, high - low)
    for line in lines:
        for at, value in line.exemplars:
            place_of = _bucket(value, bounds) - low
            axes.plot([at], [place_of], marker="D", markersize=3, color="#9fc6ff", zorder=5)
    _over_time(axes, window, marks)


def _bucket(value: float, bounds: list[float]) -> float:
    above = next((n for n, bound in enumerate(bounds) if value <= bound), len(bounds) - 1)
    return above + 0.5


def _stack(axes: Any, lines: list[Line], colours: dict[str, str], *, bars: bool, step: float) -> None:
    times = sorted({at for line in lines for at, _ in line.points})
    below = np.zeros(len(times))
    for line in lines:
        known = dict(line.points)
        values = np.array([known.get(at, 0.0) for at in times])
        if bars:
            axes.bar(
                [at - step / 2 for at in times],
                values,
                step * 0.85,
                bottom=below,
                color=colours[line.name],
                alpha=0.88,
                align="center",
            )
        else:
            axes.fill_between(times, below, below + values, color=colours[line.name], alpha=0.75, linewidth=0)
            axes.plot(times, below + values, color=colours[line.name], linewidth=0.8)
        below = below + values


def _scale(axes: Any, panel: Panel, unit: str, lines: list[Line], *, stacked: bool) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    steps = defaults.get("thresholds", {}).get("steps", [])[1:]
    top = max((value for line in lines for _, value in line.points), default=0.0)
    if stacked:
        sums: dict[float, float] = {}
        for line in lines:
            for at, value in line.points:
                sums[at] = sums.get(at, 0) + value
        top = max(sums.values(), default=0.0)
    if defaults.get("custom", {}).get("thresholdsStyle", {}).get("mode") == "dashed":
        for step in steps:
            # A line far above what there is would flatten it; Grafana leaves such a line out too.
            if step["value"] <= max(top * 2.5, 1e-12) or top == 0:
                axes.axhline(
                    step["value"], color=colour(step["color"]), linewidth=1, dashes=(5, 4), alpha=0.9
                )
                top = max(top, step["value"])
    axes.set_ylim(0, (defaults.get("max") or top * 1.12) or 1)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=unit in ("none", "short") and top > 3))
    formatter: Callable[[float, int], str] = lambda value, _: written(value, unit).replace("$", r"\$")  # noqa: E731
    axes.yaxis.set_major_formatter(FuncFormatter(formatter))


def _over_time(axes: Any, window: Window, marks: Sequence[Mark]) -> None:
    axes.set_xlim(0, window.seconds)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 1.5, 3, 5, 10]))
    formatter: Callable[[float, int], str] = lambda value, _: f"{int(value) // 60}:{int(value) % 60:02d}"  # noqa: E731
    axes.xaxis.set_major_formatter(FuncFormatter(formatter))
    for mark in marks:
        axes.axvline(mark.at, color=colour(mark.colour), linewidth=0.8, alpha=0.22, dashes=(2, 3), zorder=1)
        axes.plot(
            [mark.at],
            [0],
            marker="^",
            markersize=4,
            color=colour(mark.colour),
            clip_on=False,
            zorder=6,
            transform=axes.get_xaxis_transform(),
        )


def _stretches(line: Line, window: Window) -> list[tuple[float, float, float]]:
    found: list[tuple[float, float, float]] = []
    for at, value in line.points:
        end = min(at + window.step, window.seconds)
        if found and found[-1][2] == value and at - found[-1][1] < 1.5 * window.step:
            found[-1] = (found[-1][0], end, value)
        else:
            found.append((at, end, value))
    return found


def _fixed(panel: Panel) -> dict[str, str]:
    return {
        override["matcher"]["options"]: each["value"]["fixedColor"]
        for override in panel["fieldConfig"]["overrides"]
        for each in override["properties"]
        if each["id"] == "color"
    }


def _legend_rows(names: list[str], room: float) -> list[list[str]]:
    rows: list[list[str]] = []
    left = 0.0
    for name in names:
        needed = width_of(name, _LEGEND) + 30
        if not rows or left + needed > room - 16:
            rows.append([])
            left = 0.0
        rows[-1].append(name)
        left += needed
    if len(rows) > 3:
        hidden = sum(map(len, rows[3:])) + 1
        rows = [*rows[:2], [*rows[2][:-1], f"and {hidden} more"]]
    return rows


def _legend(canvas: Canvas, at: tuple[float, float], rows: list[list[str]], colours: dict[str, str]) -> None:
    x0, y = at
    for row in rows:
        x = x0
        for name in row:
            canvas.bar(x, y + 6, 13, 3, colours.get(name, GRID))
            canvas.text(x + 18, y + 8, name, _LEGEND, DIM)
            x += width_of(name, _LEGEND) + 30
        y += 18
