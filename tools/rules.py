"""Write the generated configuration files, or check that they are up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from queenright.alerting.config import render_alertmanager, render_prometheus
from queenright.alerting.export.alertmanager import UNSET_DEADMAN_URL
from queenright.alerting.files import alertmanager_folder, prometheus_folder, rules_folder
from queenright.alerting.rules import rule_files, rule_groups
from queenright.alerting.rules.rule import Alert, Group
from queenright.health.settings import HealthSettings

_RULES_HEADER: Final = "Written by `python -m tools.rules --write`; edit queenright.alerting.rules instead."
_REFERENCE_HEADER: Final = "# Written by `python -m tools.rules --write`; edit {name}.in instead."
_INTRODUCTION: Final = """# Alerts

All Prometheus alerts of Queenright with the default settings. This page is generated from the rules;
`queenright rules export` writes them with your thresholds. A condition must last for the rule's `for`, 15 s
to 30 min.

`critical` pages, `warning` needs attention the same day, `info` is context. Alerts in the first table wake
the judge and notify no one. The alert that notifies people about an agent is `QueenrightIntervention`, which
Queenright sends after the queen has approved a ticket ([alerting](alerting.md),
[runbook](../alerting/runbooks/QueenrightIntervention.md)).
"""

_TITLES: Final = {
    "queenright-agents": "Symptoms of agents, for the judge",
    "queenright-fleet": "Fleet, for on-call",
    "queenright-slo": "Fleet objectives, for on-call",
    "queenright-acting": "Interventions, for on-call",
    "queenright-monitor": "Queenright itself, for on-call",
}


def generated() -> dict[Path, str]:
    """Return the path and content of every generated file: rules, configuration and ``docs/alerts.md``."""
    settings = HealthSettings()
    rules = rule_files(settings, header=_RULES_HEADER)
    return {
        **{rules_folder() / name: text for name, text in rules.items()},
        prometheus_folder().parents[1] / "docs" / "alerts.md": alerts_page(rule_groups(settings)),
        alertmanager_folder() / "alertmanager.yml": render_alertmanager(
            service_url="http://queenright:8420",
            slack_api_url_file=Path("/run/secrets/slack_api_url"),
            pagerduty_routing_key_file=Path("/run/secrets/pagerduty_routing_key"),
            deadman_url=UNSET_DEADMAN_URL,
            templates=Path("/etc/alertmanager/templates"),
            token_file=Path("/run/secrets/queenright_token"),
            header=_REFERENCE_HEADER.format(name="alertmanager.yml"),
        ),
        prometheus_folder() / "prometheus.yml": render_prometheus(
            service_url="http://queenright:8420",
            alertmanager_url="http://alertmanager:9093",
            rules=Path("/etc/prometheus/rules"),
            token_file=Path("/run/secrets/queenright_token"),
            header=_REFERENCE_HEADER.format(name="prometheus.yml"),
        ),
    }


def alerts_page(groups: Iterable[Group]) -> str:
    """Return ``docs/alerts.md``."""
    return _INTRODUCTION + "".join(_format_section(group) for group in groups if group.name in _TITLES)


def _format_section(group: Group) -> str:
    rows = "\n".join(_iterate_rows(group))
    return f"\n## {_TITLES[group.name]}\n\n| alert | severity | fires when |\n| --- | --- | --- |\n{rows}\n"


def _iterate_rows(group: Group) -> Iterator[str]:
    for alert in group.rules:
        if isinstance(alert, Alert):
            variant = alert.labels.get("ticket_severity") or alert.labels.get("window")
            link = f"[`{alert.name}`](../alerting/runbooks/{alert.name}.md)"
            name = f"{link}{f' ({variant})' if variant else ''}"
            cells = (name, alert.severity, alert.threshold)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if ``--check`` finds an outdated file, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.rules", description=__doc__)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--check", action="store_true", help="fail if a file is outdated")
    choice.add_argument("--write", action="store_true", help="write the files")
    write = parser.parse_args(arguments).write
    stale = 0
    for path, text in generated().items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if write:
            path.write_text(text, encoding="utf-8")
        else:
            print(f"{path} is not up to date; run `python -m tools.rules --write`", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
