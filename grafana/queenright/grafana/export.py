"""Render the dashboards with thresholds from the settings and links to the console."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from queenright.grafana.files import dashboards_folder
from queenright.health.objectives import FASTEST_BURN, compute_burn_threshold
from queenright.health.settings import HealthSettings

DEFAULT_CONSOLE_URL: Final = "http://127.0.0.1:8420"
"""The console's URL in the committed dashboards: the default of their variable ``console``."""


def render_dashboards(settings: HealthSettings, *, console: str = DEFAULT_CONSOLE_URL) -> dict[str, str]:
    """
    Return the JSON of every dashboard by file name.

    The committed files have the default thresholds, which are replaced by those of the settings.
    """
    default, own = Thresholds.of(HealthSettings()), Thresholds.of(settings)
    replacements = {getattr(default, field.name): getattr(own, field.name) for field in fields(Thresholds)}
    console_text = json.dumps(console.rstrip("/"))
    return {
        path.name: dashboard_text(
            json.loads(
                path.read_text(encoding="utf-8").replace(json.dumps(DEFAULT_CONSOLE_URL), console_text),
                object_hook=lambda node: _replace_lines(node, replacements),
            )
        )
        for path in sorted(dashboards_folder().glob("*.json"))
    }


def dashboard_text(board: Any, encoder: type[json.JSONEncoder] | None = None) -> str:
    """Return a dashboard as the content of its file. Equal dashboards have equal content."""
    return json.dumps(board, cls=encoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _replace_lines(node: dict[str, Any], replacements: Mapping[Lines, Lines]) -> dict[str, Any]:
    """
    Return a JSON object with its threshold lines replaced. Its first step is the colour below all lines.
    """
    if node.get("mode") != "absolute" or "steps" not in node:
        return node
    base_step, *steps = node["steps"]
    lines = tuple((step["value"], step["color"]) for step in steps)
    own_lines = replacements.get(lines, lines)
    return {**node, "steps": [base_step, *({"color": colour, "value": value} for value, colour in own_lines)]}


BLUE, YELLOW, ORANGE, RED = "blue", "yellow", "orange", "red"

Lines = tuple[tuple[float, str], ...]
"""Threshold lines in ascending order, each a value and a colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The threshold lines that depend on settings. Times are in seconds, shares from 0 to 1."""

    bad_steps: Lines
    activity: Lines
    heartbeat: Lines
    checkpoint: Lines
    judge: Lines
    triage: Lines
    bad_step_share: Lines
    breaker_failures: Lines

    @classmethod
    def of(cls, settings: HealthSettings) -> Thresholds:
        """Return the threshold lines for ``settings``."""
        bands, check, rules = settings.bands, settings.health_check, settings.rules
        judge = settings.judge
        return cls(
            bad_steps=_sort_lines(
                (bands.warning, BLUE), (bands.medium, YELLOW), (bands.high, ORANGE), (bands.critical, RED)
            ),
            activity=_sort_lines((settings.stall.idle_seconds, ORANGE), (settings.stall.tool_seconds, RED)),
            heartbeat=_sort_lines((settings.heartbeat.timeout_seconds, ORANGE)),
            checkpoint=_sort_lines(
                (check.checkpoint_degraded_seconds, YELLOW),
                (check.checkpoint_stale_threshold_seconds, ORANGE),
            ),
            judge=_sort_lines((2 * judge.interval_seconds, ORANGE), (3 * judge.interval_seconds, RED)),
            triage=_sort_lines(
                (judge.triage_timeout_seconds / 2, YELLOW), (judge.triage_timeout_seconds, RED)
            ),
            bad_step_share=burn_lines(rules.bad_steps.error_budget),
            breaker_failures=_sort_lines((settings.circuit_breaker.default.failure_threshold, ORANGE)),
        )


def _sort_lines(*lines: tuple[float, str]) -> Lines:
    # Grafana requires ascending steps, and settings may put the thresholds in any order.
    return tuple(sorted(lines, key=lambda line: line[0]))


def burn_lines(budget: float) -> Lines:
    """Return two lines: the error budget, and the share at which the fastest burn-rate alert fires."""
    return (budget, ORANGE), (compute_burn_threshold(budget, FASTEST_BURN), RED)
