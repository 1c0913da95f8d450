"""The alerts as a page of documentation: what fires when, why, and where to read on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from queenright.alerting.rules.rule import Alert, Group

_INTRODUCTION: Final = """# Alerts

Every alert that Queenright brings for Prometheus, with the default settings. This page is written from the
rules themselves; `queenright rules export --config queenright.yaml` makes them with your thresholds.

`critical` pages, `warning` is looked at today, `info` is context. Alerts of the first table are symptoms of
single agents: they wake the judge and page nobody. What people hear of an agent is `QueenrightIntervention`,
which comes from Queenright itself once the queen has approved it ([alerting](alerting.md),
[runbook](../alerting/runbooks/QueenrightIntervention.md)).
"""

_TITLES: Final = {
    "queenright-agents": "Symptoms of agents, for the judge",
    "queenright-fleet": "The fleet, for whoever is on call",
    "queenright-slo": "Objectives of the fleet, for whoever is on call",
    "queenright-acting": "What was done to agents, for whoever is on call",
    "queenright-monitor": "Queenright itself, for whoever is on call",
}


def alerts_page(groups: Iterable[Group]) -> str:
    """Return ``docs/alerts.md``."""
    return _INTRODUCTION + "".join(_section(group) for group in groups if group.name in _TITLES)


def _section(group: Group) -> str:
    rows = "\n".join(_rows(group))
    return (
        f"\n## {_TITLES[group.name]}\n\n"
        "| alert | severity | for | fires when | why | runbook |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        f"{rows}\n"
    )


def _rows(group: Group) -> Iterator[str]:
    for alert in group.rules:
        if isinstance(alert, Alert):
            told = alert.labels.get("ticket_severity") or alert.labels.get("window")
            name = f"`{alert.name}`{f' ({told})' if told else ''}"
            lasts = f", then {alert.keep_firing_for} more" if alert.keep_firing_for else ""
            times = f"{alert.for_ or '-'}{lasts}"
            runbook = f"[{alert.name.removeprefix('Queenright')}](../alerting/runbooks/{alert.name}.md)"
            cells = (name, alert.severity, times, alert.threshold, f"{alert.reason}.", runbook)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
