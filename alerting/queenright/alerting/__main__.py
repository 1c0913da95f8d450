"""Write the generated configuration files, or check that they are up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from queenright.alerting.config import REFERENCE_HEADER, render_alertmanager, render_prometheus
from queenright.alerting.export.alertmanager import UNSET_DEADMAN_URL
from queenright.alerting.files import alertmanager_folder, prometheus_folder, rules_folder
from queenright.alerting.rules import rule_files, rule_groups
from queenright.alerting.rules.table import alerts_page
from queenright.health.settings import HealthSettings

_RULES_HEADER: Final = (
    "Written by `python -m queenright.alerting --write`; edit queenright.alerting.rules instead."
)


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
            header=REFERENCE_HEADER.format(name="alertmanager.yml"),
        ),
        prometheus_folder() / "prometheus.yml": render_prometheus(
            service_url="http://queenright:8420",
            alertmanager_url="http://alertmanager:9093",
            rules=Path("/etc/prometheus/rules"),
            token_file=Path("/run/secrets/queenright_token"),
            header=REFERENCE_HEADER.format(name="prometheus.yml"),
        ),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if ``--check`` finds an outdated file, else 0."""
    parser = argparse.ArgumentParser(prog="python -m queenright.alerting", description=__doc__)
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
            print(f"{path} is not up to date; run `python -m queenright.alerting --write`", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
