"""All rules, in the files that they are in."""

from __future__ import annotations

from typing import Final

from queenright.alerting.rules import agents, fleet, monitor, recording
from queenright.alerting.rules.rule import EVERYTHING, HERE, Group, Links, Selectors
from queenright.alerting.rules.text import render
from queenright.health.settings import HealthSettings

_INTRODUCTION: Final = {
    recording.FILE: "What alerts and dashboards share. Names: level:metric:operations.",
    agents.FILE: "Symptoms of single workers, seen from outside. They wake the judge and page nobody "
    "(source: rules).",
    fleet.FILE: "What concerns many workers at once, and what was done to them: for whoever is on call "
    "(source: monitor).",
    monitor.FILE: "About Queenright itself, for whoever is on call (source: monitor).",
}


def rule_groups(
    settings: HealthSettings, selectors: Selectors = EVERYTHING, links: Links = HERE
) -> tuple[Group, ...]:
    """
    Return every rule.

    Args:
        settings: Thresholds; the detectors' own.
        selectors: What every selector is narrowed to.
        links: Where runbooks and dashboards are.
    """
    parts = (recording, agents, fleet, monitor)
    return tuple(group for part in parts for group in part.groups(settings, selectors, links))


def rule_files(
    settings: HealthSettings,
    selectors: Selectors = EVERYTHING,
    links: Links = HERE,
    *,
    header: str = "Written by `queenright rules export`.",
) -> dict[str, str]:
    """
    Return every rule file's YAML by its name.

    Args:
        settings: Thresholds; the detectors' own.
        selectors: What every selector is narrowed to.
        links: Where runbooks and dashboards are.
        header: Who wrote the file, and how it is changed; its first line.
    """
    groups = rule_groups(settings, selectors, links)
    return {
        file: render([group for group in groups if group.file == file], (header, introduction))
        for file, introduction in _INTRODUCTION.items()
    }
