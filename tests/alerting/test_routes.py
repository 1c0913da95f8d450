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
from tests.alerting.emitted import list_outbox_alerts, list_rule_alerts
from tests.alerting.real import real_alertmanager, run_receivers
from tests.programs import VERSIONS, program, run

CONFIG: Final = alertmanager_folder() / "alertmanager.yml"
BOUNDED: Final = {"alertname", "agent", "cause", "cluster", "storm"}
"""Labels that groups may use: names given by people, and the storm."""
RETENTION: Final = 120 * 3600
"""Alertmanager's default retention of its notification log, in seconds."""
ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "alerting.md").read_text("utf-8")


def get_expected_receivers(labels: Mapping[str, str]) -> str:
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


def list_distinct_alerts() -> list[dict[str, str]]:
    """Return one emitted alert of each kind that routes can distinguish, and some foreign alerts."""
    queen_alerts = {
        tuple(sorted((name, value) for name, value in labels.items() if name not in ("agent", "cause")))
        for labels in list_outbox_alerts()
    }
    return [
        *list_rule_alerts(),
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

    alerts = list_distinct_alerts()
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(find_receivers, alerts))
    differences = [
        f"{labels}: {answer}, not {get_expected_receivers(labels)}"
        for labels, answer in zip(alerts, answers, strict=True)
        if answer != get_expected_receivers(labels)
    ]
    assert not differences, "\n".join(differences)


def test_symptoms_do_not_page_and_pages_come_from_queen_or_monitor() -> None:
    config = yaml.safe_load(CONFIG.read_text())
    paging_receivers = {
        receiver["name"] for receiver in config["receivers"] if "pagerduty_configs" in receiver
    }
    for labels in list_distinct_alerts():
        paging = set(get_expected_receivers(labels).split(",")) & paging_receivers
        assert not paging or (labels["source"] in ("queen", "monitor") and labels["severity"] == "critical")
    [judge] = [receiver for receiver in config["receivers"] if receiver["name"] == "judge"]
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
    names = {receiver["name"] for receiver in yaml.safe_load(CONFIG.read_text())["receivers"]}
    used_names = {
        name for labels in list_distinct_alerts() for name in get_expected_receivers(labels).split(",")
    }
    assert names == used_names


# -- repeats and groups


_MATCHER: Final = re.compile(r'(\w+)(=~|!~|!=|=)"(.*)"')


def _is_match(route: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for matcher in route.get("matchers", ()):
        name, operator, pattern = _MATCHER.fullmatch(matcher).groups()  # type: ignore[union-attr]
        value = labels.get(name, "")
        is_equal = re.fullmatch(pattern, value) is not None if "~" in operator else value == pattern
        if is_equal == operator.startswith("!"):
            return False
    return True


@functools.cache
def _load_route_tree() -> dict[str, Any]:
    route: dict[str, Any] = yaml.safe_load(CONFIG.read_text())["route"]
    return route


def find_leaves(labels: Mapping[str, str], route: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the routes that an alert ends in, each with inherited settings."""
    route = route if route is not None else _load_route_tree()
    own_settings = {
        name: value for name, value in route.items() if name not in ("routes", "matchers", "continue")
    }
    leaves = []
    for child in route.get("routes", ()):
        if _is_match(child, labels):
            leaves += find_leaves(labels, {**own_settings, **child} | {"routes": child.get("routes", [])})
            if not child.get("continue"):
                break
    return leaves or [own_settings]


def test_parsed_routes_match_amtool() -> None:
    for labels in list_distinct_alerts():
        assert ",".join(route["receiver"] for route in find_leaves(labels)) == get_expected_receivers(
            labels
        ), labels


def test_watchdog_is_sent_every_minute() -> None:
    """The Watchdog is repeated at the first group evaluation after `repeat_interval`, not exactly then."""
    [route] = find_leaves({"alertname": "QueenrightWatchdog", "source": "monitor", "severity": "none"})
    interval, repeat = parse_duration(route["group_interval"]), parse_duration(route["repeat_interval"])

    assert parse_duration(route["group_wait"]) == 0
    assert (repeat // interval + 1) * interval <= 60


def test_symptom_wakes_the_judge_immediately_and_every_ten_minutes() -> None:
    [route] = find_leaves({"alertname": "QueenrightLoop", "source": "rules", "severity": "critical"})

    assert (route["group_wait"], route["repeat_interval"]) == ("0s", "10m")


def test_acknowledged_ticket_is_not_repeated_by_alertmanager() -> None:
    """B41: only Queenright sends reminders. Alertmanager forgets what it sent after its retention."""
    for labels in list_outbox_alerts():
        for route in find_leaves(labels):
            assert 3 * 86_400 <= parse_duration(route["repeat_interval"]) < RETENTION, labels
    for name in ("QueenrightMonitorDown", "QueenrightFleetDegraded"):
        [route] = find_leaves({"alertname": name, "source": "monitor", "severity": "critical"})
        assert route["repeat_interval"] == "4h"


def write_production_config(folder: Path, **options: Any) -> Path:
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
    """Alertmanager warns of a repeat interval longer than its retention."""
    warnings = {}
    async with run_receivers() as recorder:
        for repeat in ("4d", "6d"):
            folder = tmp_path / repeat
            config = write_production_config(folder)
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
    critical_names = {
        rule.name
        for group in rule_groups(HealthSettings())
        for rule in group.rules
        if isinstance(rule, Alert) and group.file == "fleet.yml" and rule.severity == "critical"
    }
    assert critical_names == set(FLEET_ALERTS)
    for labels in list_rule_alerts():
        [route] = find_leaves(labels)
        is_fleet_page = labels["alertname"] in FLEET_ALERTS and labels["severity"] == "critical"
        assert (route["group_by"] == ["cluster"]) == is_fleet_page, labels
        if is_fleet_page:
            assert route["receiver"] == "on-call"


# -- snippets in docs/alerting.md


def write_with_snippet(path: Path, heading: str) -> Path:
    """Write the configuration with the routes of a snippet from the docs ahead of its own routes."""
    section = PAGE.split(f"{heading}\n", 1)[1]
    [snippet] = re.findall(r"```yaml\n(.*?)```", section.split("\n## ", 1)[0], re.DOTALL)[:1]
    config, added_routes = yaml.safe_load(CONFIG.read_text()), yaml.safe_load(snippet)
    config["route"]["routes"] = added_routes["route"]["routes"] + config["route"]["routes"]
    config["receivers"] += added_routes.get("receivers", [])
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("heading", "changed_alerts"),
    [
        ("## Agents that wait for people", {"QueenrightWaitingForUser": "on-call-slack,judge"}),
        ("## Alerts about interventions", {"QueenrightTaskRestartedFromStart": "on-call"}),
    ],
)
def test_documented_route_snippet_changes_only_its_alerts(
    tmp_path: Path, version: str, heading: str, changed_alerts: dict[str, str]
) -> None:
    config = write_with_snippet(tmp_path / "alertmanager.yml", heading)
    check_result = run("amtool", "check-config", config, version=version)
    assert check_result.returncode == 0, check_result.stdout + check_result.stderr
    other_names = (
        "QueenrightLoop",
        "QueenrightMonitorDown",
        "QueenrightWatchdog",
        "QueenrightRecoveryFailed",
    )
    alerts = {labels["alertname"]: labels for labels in list_rule_alerts()}
    for name in (*changed_alerts, *other_names):
        words = [f'{label}="{value}"' for label, value in alerts[name].items()]
        result = run("amtool", "config", "routes", "test", f"--config.file={config}", *words, version=version)
        assert result.stdout.strip() == changed_alerts.get(name, get_expected_receivers(alerts[name])), name


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

    check_result = run("amtool", "check-config", config, version=version)
    words = [f'{label}="{value}"' for label, value in alert.items()]
    result = run("amtool", "config", "routes", "test", f"--config.file={config}", *words, version=version)

    assert check_result.returncode == 0, check_result.stdout + check_result.stderr
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

    assert get_expected_receivers(labels) == "on-call"
    assert "health_monitoring.alerting.circuit_breaker_open.severity" in PAGE
    assert "to `critical` in `alerting/prometheus/rules" not in PAGE
