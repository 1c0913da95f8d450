"""
Recording rules and alerts for Prometheus, generated from the detectors' settings.

The committed ``alerting/prometheus/rules/*.yml`` are these rules with the default settings.
"""

from __future__ import annotations

from typing import Final

from queenright.alerting.rules import agents, fleet, monitor, recording
from queenright.alerting.rules.rule import (
    DEFAULT_LINKS,
    NO_SELECTORS,
    Alert,
    Group,
    Links,
    RecordingRule,
    Selectors,
)
from queenright.alerting.rules.text import render
from queenright.health.settings import HealthSettings

__all__ = ["Alert", "Group", "Links", "RecordingRule", "Selectors", "render", "rule_files", "rule_groups"]


_INTRODUCTION: Final = {
    recording.FILE: "Recording rules that alerts and dashboards share, named level:metric:operations.",
    agents.FILE: "Symptoms of single workers. They trigger the judge and page nobody (label source: rules).",
    fleet.FILE: "Alerts about the fleet and about interventions, for on-call (label source: monitor).",
    monitor.FILE: "Alerts about Queenright itself, for on-call (label source: monitor).",
}


def rule_groups(
    settings: HealthSettings, selectors: Selectors = NO_SELECTORS, links: Links = DEFAULT_LINKS
) -> tuple[Group, ...]:
    """Return all rule groups."""
    parts = (recording, agents, fleet, monitor)
    return tuple(group for part in parts for group in part.groups(settings, selectors, links))


def rule_files(
    settings: HealthSettings,
    selectors: Selectors = NO_SELECTORS,
    links: Links = DEFAULT_LINKS,
    *,
    header: str = "Written by `queenright rules export`.",
) -> dict[str, str]:
    """
    Return the YAML of every rule file, by name.

    Args:
        header: First line of each file, which says how it was generated.
    """
    groups = rule_groups(settings, selectors, links)
    return {
        file: render([group for group in groups if group.file == file], (header, introduction))
        for file, introduction in _INTRODUCTION.items()
    }
