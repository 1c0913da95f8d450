"""The receivers of each emitted alert, according to the bundled and the newest amtool."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from queenright.alerting.config import render_alertmanager
from queenright.alerting.export.loaded_rules import parse_duration
from queenright.alerting.files import alertmanager_folder, templates_folder
from queenright.alerting.rules import Alert, rule_groups
from queenright.health.settings import HealthSettings
from tests.alerting.emitted import outbox_alerts, rule_alerts
from tests.alerting.real import real_alertmanager, run_receivers
from tests.programs import VERSIONS, program, run

CONFIG: Final = alertmanager_folder() / "alertmanager.yml"
BOUNDED: Final = {"alertname", "agent", "cause", "cluster", "storm"}
"""Labels that groups may use: names given by people, and the storm."""
RETENTION: Final = 120 * 3600
"""Alertmanager's default retention of its notification log, in seconds."""
ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "alerting.md").read_text("utf-8")


def expected_receivers(labels: Mapping[str, str]) -> str:
    """Return the expected receivers of an alert, by name."""
    source, severity = labels.get("source"), labels.get("severity")
    if labels["alertname"] == "QueenrightWatchdog":
        return "deadman"
    if source == "rules":
        return "judge"
    if source == "monitor":
        return "on-call" if severity == "critical" else "on-call-slack"
    if source != "queen":
        return "on-call-slack"
    if severity != "critical":
        return "slack"
    # An alert of an earlier version has no ticket_id, and stays in its group.
    return "pagerduty,slack" if labels.get("storm") or labels.get("ticket_id") else "slack-and-pagerduty"


def distinct_alerts() -> list[dict[str, str]]:
    """Return one emitted alert of each kind that routes can distinguish, and some foreign alerts."""
    queen_alerts = {
        tuple(sorted((name, value) for name, value in labels.items() if name not in ("agent", "cause")))
        for labels in outbox_alerts()
    }
    return [
        *rule_alerts(),
        *map(dict, queen_alerts),
        {"alertname": "QueenrightIntervention", "source": "queen"},
        {"alertname": "QueenrightIntervention", "source": "queen", "severity": "critical", "storm": ""},
        {"alertname": "QueenrightIntervention", "source": "queen", "severity": "critical", "ticket_id": ""},
        {"alertname": "ThirdPartyAlert", "severity": "critical"},
        {"alertname": "ThirdPartyAlert", "source": "elsewhere"},
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_alert_reaches_exactly_its_receivers(version: str) -> None:
    program("amtool", version)

    def find_receivers(labels: Mapping[str, str]) -> str:
        words = [f'{name}="{value}"' for name, value in labels.items()]
        result = run("amtool", "config", "routes", "test", f"--config.file={CONFIG}", *words, version=version)
        return result.stdout.strip() or result.stderr

    alerts = distinct_alerts()
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(find_receivers, alerts))
    differences = [
        f"{labels}: {answer}, not {expected_receivers(labels)}"
        for labels, answer in zip(alerts, answers, strict=True)
        if answer != expected_receivers(labels)
    ]
    assert not differences, "\n".join(differences)


def test_symptoms_do_not_page_and_pages_come_from_queen_or_monitor() -> None:
    config = yaml.safe_load(CONFIG.read_text())
    paging_receivers = {r["name"] for r in config["receivers"] if "pagerduty_configs" in r}
    for labels in distinct_alerts():
        paged = set(expected_receivers(labels).split(",")) & paging_receivers
        assert not paged or (labels["source"] in ("queen", "monitor") and labels["severity"] == "critical")
    [judge] = [r for r in config["receivers"] if r["name"] == "judge"]
    assert judge.keys() == {"name", "webhook_configs"}


def test_routes_use_matchers_and_group_by_bounded_labels() -> None:
    routes = [yaml.safe_load(CONFIG.read_text())["route"]]
    for route in routes:
        routes += route.get("routes", [])
        assert not {"match", "match_re"} & route.keys()
        # PagerDuty does not notify again for an open incident, so each ticket needs its own group.
        ids = {"ticket_id"} if route.get("receiver") == "pagerduty" else set()
        assert set(route.get("group_by", ())) <= BOUNDED | ids
    assert len(routes) > 8


def test_every_receiver_is_used() -> None:
    names = {r["name"] for r in yaml.safe_load(CONFIG.read_text())["receivers"]}
    used = {name for labels in distinct_alerts() for name in expected_receivers(labels).split(",")}
    assert names == used


# -- repeats and groups


_MATCHER: Final = re.compile(r'(\w+)(=~|!~|!=|=)"(.*)"')


def _matches(route: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for matcher in route.get("matchers", ()):
        name, operator, wanted = _MATCHER.fullmatch(matcher).groups()  # type: ignore[union-attr]
        value = labels.get(name, "")
        same = re.fullmatch(wanted, value) is not None if "~" in operator else value == wanted
        if same == operator.startswith("!"):
            return False
    return True


@functools.cache
def _tree() -> dict[str, Any]:
    route: dict[str, Any] = yaml.safe_load(CONFIG.read_text())["route"]
    return route


def find_leaves(labels: Mapping[str, str], route: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the routes that an alert ends in, each with inherited settings."""
    route = route if route is not None else _tree()
    own = {name: value for name, value in route.items() if name not in ("routes", "matchers", "continue")}
    found = []
    for child in route.get("routes", ()):
        if _matches(child, labels):
            found += find_leaves(labels, {**own, **child} | {"routes": child.get("routes", [])})
            if not child.get("continue"):
                break
    return found or [own]


def test_parsed_routes_match_amtool() -> None:
    for labels in distinct_alerts():
        assert ",".join(route["receiver"] for route in find_leaves(labels)) == expected_receivers(labels), (
            labels
        )


def test_watchdog_is_sent_every_minute() -> None:
    """It is repeated at the first group evaluation after `repeat_interval`, not exactly then."""
    [route] = find_leaves({"alertname": "QueenrightWatchdog", "source": "monitor", "severity": "none"})
    interval, repeat = parse_duration(route["group_interval"]), parse_duration(route["repeat_interval"])

    assert parse_duration(route["group_wait"]) == 0
    assert (repeat // interval + 1) * interval <= 60


def test_symptom_wakes_the_judge_immediately_and_every_ten_minutes() -> None:
    [route] = find_leaves({"alertname": "QueenrightLoop", "source": "rules", "severity": "critical"})

    assert (route["group_wait"], route["repeat_interval"]) == ("0s", "10m")


def test_acknowledged_ticket_is_not_repeated_by_alertmanager() -> None:
    """B41: only Queenright sends reminders. Alertmanager forgets what it sent after its retention."""
    for labels in outbox_alerts():
        for route in find_leaves(labels):
            assert 3 * 86_400 <= parse_duration(route["repeat_interval"]) < RETENTION, labels
    for name in ("QueenrightMonitorDown", "QueenrightFleetDegraded"):
        [route] = find_leaves({"alertname": name, "source": "monitor", "severity": "critical"})
        assert route["repeat_interval"] == "4h"


def production_config(folder: Path, **options: Any) -> Path:
    """Write the configuration with its production waits, and the secret files that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    config, secret = folder / "alertmanager.yml", folder / "secret"
    secret.write_text("k" * 32)
    text = render_alertmanager(
        service_url="http://127.0.0.1:1",
        slack_api_url_file=secret,
        pagerduty_routing_key_file=secret,
        deadman_url="http://127.0.0.1:1/deadman",
        templates=templates_folder(),
        **options,
    )
    config.write_text(text)
    return config


@pytest.mark.parametrize("version", VERSIONS)
async def test_alertmanager_does_not_warn_about_the_repeat_interval(tmp_path: Path, version: str) -> None:
    """It would warn of a repeat interval longer than its retention."""
    warnings = {}
    async with run_receivers() as recorder:
        for repeat in ("4d", "6d"):
            folder = tmp_path / repeat
            config = production_config(folder)
            assert "repeat_interval: 4d" in config.read_text()
            config.write_text(config.read_text().replace("repeat_interval: 4d", f"repeat_interval: {repeat}"))
            async with real_alertmanager(folder, recorder, version, config=config):
                pass
            log = (folder / "alertmanager.log").read_text()
            warnings[repeat] = [line for line in log.splitlines() if re.search(r"level=warn|WARN", line)]

    assert warnings["4d"] == []
    assert "repeat_interval" in "".join(warnings["6d"])


FLEET_ALERTS: Final = (
    "QueenrightFleetDegraded",
    "QueenrightBadStepsBurn",
    "QueenrightSlowInterventionsBurn",
)


def test_fleet_alerts_are_one_group_per_cluster() -> None:
    """One cause can fire several of these; nothing else is in their group, not even their own warnings."""
    urgent = {
        rule.name
        for group in rule_groups(HealthSettings())
        for rule in group.rules
        if isinstance(rule, Alert) and group.file == "fleet.yml" and rule.severity == "critical"
    }
    assert urgent == set(FLEET_ALERTS)
    for labels in rule_alerts():
        [route] = find_leaves(labels)
        together = labels["alertname"] in FLEET_ALERTS and labels["severity"] == "critical"
        assert (route["group_by"] == ["cluster"]) == together, labels
        if together:
            assert route["receiver"] == "on-call"


# -- snippets in docs/alerting.md


def write_with_snippet(path: Path, heading: str) -> Path:
    """Write the configuration with the routes of a snippet from the docs ahead of its own routes."""
    below = PAGE.split(f"{heading}\n", 1)[1]
    [snippet] = re.findall(r"```yaml\n(.*?)```", below.split("\n## ", 1)[0], re.DOTALL)[:1]
    config, added = yaml.safe_load(CONFIG.read_text()), yaml.safe_load(snippet)
    config["route"]["routes"] = added["route"]["routes"] + config["route"]["routes"]
    config["receivers"] += added.get("receivers", [])
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("heading", "changed"),
    [
        ("## Agents that wait for people", {"QueenrightWaitingForUser": "on-call-slack,judge"}),
        ("## Alerts about interventions", {"QueenrightTaskRestartedFromStart": "on-call"}),
    ],
)
def test_documented_route_snippet_changes_only_its_alerts(
    tmp_path: Path, version: str, heading: str, changed: dict[str, str]
) -> None:
    config = write_with_snippet(tmp_path / "alertmanager.yml", heading)
    checked = run("amtool", "check-config", config, version=version)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    others = ("QueenrightLoop", "QueenrightMonitorDown", "QueenrightWatchdog", "QueenrightRecoveryFailed")
    alerts = {labels["alertname"]: labels for labels in rule_alerts()}
    for name in (*changed, *others):
        words = [f'{label}="{value}"' for label, value in alerts[name].items()]
        result = run("amtool", "config", "routes", "test", f"--config.file={config}", *words, version=version)
        assert result.stdout.strip() == changed.get(name, expected_receivers(alerts[name])), name


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"agent": "billing-1", "severity": "critical"}, "pagerduty,slack-billing"),
        ({"agent": "billing-1", "severity": "warning"}, "slack-billing"),
        ({"agent": "billing-1", "severity": "critical", "storm": "s1"}, "pagerduty,slack"),
        ({"agent": "researcher", "severity": "warning"}, "slack"),
    ],
)
def test_documented_team_channel_gets_only_its_agents(
    tmp_path: Path, version: str, labels: dict[str, str], expected: str
) -> None:
    config = write_with_snippet(tmp_path / "alertmanager.yml", "## A Slack channel per team")
    alert = {"alertname": "QueenrightIntervention", "source": "queen", "ticket_id": "t1", **labels}

    checked = run("amtool", "check-config", config, version=version)
    words = [f'{label}="{value}"' for label, value in alert.items()]
    result = run("amtool", "config", "routes", "test", f"--config.file={config}", *words, version=version)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert result.stdout.strip() == expected


def test_docs_name_the_setting_that_makes_an_open_breaker_a_page() -> None:
    """The setting works; the rule files are generated, so the docs do not tell users to edit them."""
    settings = HealthSettings.model_validate({"alerting": {"circuit_breaker_open": {"severity": "critical"}}})
    [breaker] = [
        rule
        for group in rule_groups(settings)
        for rule in group.rules
        if isinstance(rule, Alert) and rule.name == "QueenrightCircuitBreakerOpen"
    ]
    labels = {"alertname": breaker.name, "severity": breaker.severity, "source": breaker.source}

    assert expected_receivers(labels) == "on-call"
    assert "health_monitoring.alerting.circuit_breaker_open.severity" in PAGE
    assert "to `critical` in `alerting/prometheus/rules" not in PAGE
