"""Generate ``docs/alerts.md``: when each alert fires; its name links to its runbook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from queenright.alerting.rules.rule import Alert, Group

_INTRODUCTION: Final = """# Alerts

All Prometheus alerts of Queenright with the default settings. This page is generated from the rules;
`queenright rules export` writes them with your thresholds.

`critical` pages, `warning` needs attention the same day, `info` is context. Alerts in the first table wake
the judge and page nobody. People are notified about an agent by `QueenrightIntervention`, which Queenright
sends when the queen has approved it ([alerting](alerting.md),
[runbook](../alerting/runbooks/QueenrightIntervention.md)).
"""

_TITLES: Final = {
    "queenright-agents": "Symptoms of agents, for the judge",
    "queenright-fleet": "Fleet, for on-call",
    "queenright-slo": "Fleet objectives, for on-call",
    "queenright-acting": "Interventions, for on-call",
    "queenright-monitor": "Queenright itself, for on-call",
}


def alerts_page(groups: Iterable[Group]) -> str:
    """Return ``docs/alerts.md``."""
    return _INTRODUCTION + "".join(_section(group) for group in groups if group.name in _TITLES)


def _section(group: Group) -> str:
    rows = "\n".join(_rows(group))
    return (
        f"\n## {_TITLES[group.name]}\n\n"
        "| alert | severity | for | fires when |\n"
        "| --- | --- | --- | --- |\n"
        f"{rows}\n"
    )


def _rows(group: Group) -> Iterator[str]:
    for alert in group.rules:
        if isinstance(alert, Alert):
            variant = alert.labels.get("ticket_severity") or alert.labels.get("window")
            link = f"[`{alert.name}`](../alerting/runbooks/{alert.name}.md)"
            name = f"{link}{f' ({variant})' if variant else ''}"
            keeps = f", keeps firing {alert.keep_firing_for}" if alert.keep_firing_for else ""
            times = f"{alert.for_ or '-'}{keeps}"
            cells = (name, alert.severity, times, alert.threshold)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
