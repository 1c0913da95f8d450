"""What Prometheus answers to the queries of a panel, the way Grafana would ask."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from queenright.grafana import PanelQuery, annotation_queries, queries
from tools.story.recording import Story

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Line:
    """One series of a panel: times in seconds since the beginning of what is shown."""

    name: str
    labels: Labels
    points: tuple[tuple[float, float], ...]
    exemplars: tuple[tuple[float, float], ...] = ()

    @property
    def last(self) -> float:
        """Its latest value."""
        return self.points[-1][1]


@dataclass(frozen=True)
class Mark:
    """A moment that all panels show: when, and in which colour."""

    at: float
    colour: str


@dataclass(frozen=True)
class Window:
    """Which time is shown, in seconds since the epoch, and how finely."""

    since: float
    until: float
    step: float = 1.0
    bars: float = 5.0
    scrape: float = 1.0
    rate: float = 10.0
    """Of lines. A bar's is a scrape longer than the bar, as Grafana's is: else what comes between two bars
    would be in neither."""

    def variables(self, *, bars: bool) -> dict[str, str]:
        """Return what Grafana fills in itself."""
        return {
            "__rate_interval": f"{self.bars + self.scrape if bars else self.rate:g}s",
            "__interval_ms": f"{1000 * (self.bars if bars else self.step):g}",
            "__range": f"{round(self.seconds)}s",
        }

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.until - self.since


def in_whole_bars(story: Story, bars: float = Window.bars) -> Story:
    """Return the story from a little earlier on, so that the last bar ends when the story does."""
    return replace(story, since=story.until - bars * math.ceil((story.until - story.since) / bars))


@dataclass
class Answers:
    """Asks a story for what a dashboard shows with these variables."""

    story: Story
    window: Window
    variables: Mapping[str, str] = field(default_factory=dict)

    def lines(self, board: Mapping[str, Any], panel: Mapping[str, Any]) -> list[list[Line]]:
        """Return the series of each query of ``panel``."""
        bars = panel.get("interval") is not None
        known = {**self.variables, **self.window.variables(bars=bars)}
        panel_queries = queries({"panels": [panel], "templating": board["templating"]}, variables=known)
        found = []
        for target, query in zip(panel["targets"], panel_queries, strict=True):
            exemplars = self._exemplars(query.expr) if target.get("exemplar") else ()
            found.append(
                [
                    Line(_legend(target, labels), labels, points, exemplars if number == 0 else ())
                    for number, (labels, points) in enumerate(self._ask(query, bars=bars))
                ]
            )
        return found

    def marks(self, board: Mapping[str, Any]) -> list[Mark]:
        """Return where the dashboard's annotations begin."""
        result = [each for each in board["annotations"]["list"] if "expr" in each]
        filled = annotation_queries(board, variables={**self.variables, "__rate_interval": "3s"})
        marks = []
        for annotation, query in zip(result, filled, strict=True):
            for series in self.story.range(query.expr):
                times = [float(at) for at, _ in series["values"]]
                begins = [b for a, b in zip([-math.inf, *times], times, strict=False) if b - a > 2]
                marks += [Mark(at - self.window.since, annotation["iconColor"]) for at in begins]
        return [mark for mark in marks if mark.at > 1]

    def _ask(self, query: PanelQuery, *, bars: bool) -> list[tuple[Labels, tuple[tuple[float, float], ...]]]:
        if query.instant:
            return [
                (series["metric"], ((self.window.seconds, float(series["value"][1])),))
                for series in self.story.query(query.expr)
            ]
        found = self.story.range(query.expr, step=self.window.bars if bars else self.window.step)
        return [
            (series["metric"], points)
            for series in found
            if (points := tuple(self._at(at, value) for at, value in series["values"] if value != "NaN"))
        ]

    def _at(self, at: float, value: str) -> tuple[float, float]:
        return float(at) - self.window.since, float(value)

    def _exemplars(self, expr: str) -> tuple[tuple[float, float], ...]:
        return tuple(
            self._at(each["timestamp"], each["value"])
            for series in self.story.exemplars(expr)
            for each in series["exemplars"]
        )


def _legend(target: Mapping[str, Any], labels: Labels) -> str:
    written = target.get("legendFormat") or ""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), written)
