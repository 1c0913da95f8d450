"""Where each alert that we emit goes, by the real amtool of both versions."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
import yaml

from queenright.alerting.files import alertmanager_folder
from tests.alerting.emitted import of_queen, of_rules
from tests.programs import VERSIONS, program, run

CONFIG: Final = alertmanager_folder() / "alertmanager.yml"
BOUNDED: Final = {"alertname", "agent", "cause", "cluster", "storm"}
"""What groups may go by: names that people gave, and a storm, of which there is one at a time."""


def receivers(labels: Mapping[str, str]) -> str:
    """Say who is to be told of an alert: in our words, not the configuration's."""
    source, severity = labels.get("source"), labels.get("severity")
    if labels["alertname"] == "QueenrightWatchdog":
        return "deadman"
    if source == "rules":
        return "judge"
    if source == "monitor":
        return "on-call" if severity == "critical" else "on-call-slack"
    if source != "queen":
        return "on-call-slack"
    if labels.get("storm"):
        return "pagerduty,slack" if severity == "critical" else "slack"
    return "slack-and-pagerduty" if severity == "critical" else "slack"


def different() -> list[dict[str, str]]:
    """Return what we emit, one of each kind that a route could tell apart, and what nobody of us emits."""
    queens = {
        tuple(sorted((name, value) for name, value in labels.items() if name not in ("agent", "cause")))
        for labels in of_queen()
    }
    return [
        *of_rules(),
        *map(dict, queens),
        {"alertname": "QueenrightIntervention", "source": "queen"},
        {"alertname": "QueenrightIntervention", "source": "queen", "severity": "critical", "storm": ""},
        {"alertname": "SomebodyElses", "severity": "critical"},
        {"alertname": "SomebodyElses", "source": "elsewhere"},
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_alert_goes_where_it_should_and_nowhere_else(version: str) -> None:
    program("amtool", version)

    def ask(labels: Mapping[str, str]) -> str:
        words = [f'{name}="{value}"' for name, value in labels.items()]
        done = run("amtool", "config", "routes", "test", f"--config.file={CONFIG}", *words, version=version)
        return done.stdout.strip() or done.stderr

    alerts = different()
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask, alerts))
    wrong = [
        f"{labels}: {answer}, not {receivers(labels)}"
        for labels, answer in zip(alerts, answers, strict=True)
        if answer != receivers(labels)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_symptom_reaches_a_person_and_every_page_is_the_queens_or_our_own() -> None:
    config = yaml.safe_load(CONFIG.read_text())
    pages = {r["name"] for r in config["receivers"] if "pagerduty_configs" in r}
    for labels in different():
        paged = set(receivers(labels).split(",")) & pages
        assert not paged or (labels["source"] in ("queen", "monitor") and labels["severity"] == "critical")
    [judge] = [r for r in config["receivers"] if r["name"] == "judge"]
    assert judge.keys() == {"name", "webhook_configs"}


def test_routes_use_matchers_and_group_by_names_alone() -> None:
    routes = [yaml.safe_load(CONFIG.read_text())["route"]]
    for route in routes:
        routes += route.get("routes", [])
        assert not {"match", "match_re"} & route.keys()
        assert set(route.get("group_by", ())) <= BOUNDED
    assert len(routes) > 8


def test_every_receiver_is_somebodys() -> None:
    names = {r["name"] for r in yaml.safe_load(CONFIG.read_text())["receivers"]}
    used = {name for labels in different() for name in receivers(labels).split(",")}
    assert names == used
