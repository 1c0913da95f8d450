"""The rule files as text: checks that promtool does not make."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Any

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry
from promql_parser import parse

from queenright.alerting.alert import alert_severity
from queenright.alerting.files import alertmanager_folder, prometheus_folder, read_runbook, rules_folder
from queenright.alerting.rules import Selectors
from queenright.alerting.rules.promql import select
from queenright.cli.app import app
from queenright.health.detection.detectors import detect_recovery_failed
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.metrics.metrics import ServiceMetrics
from queenright.server.ops.programs import find_program

FILES = sorted(rules_folder().glob("*.yml"))
RULES = [
    rule for file in FILES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
SUFFIXES = ("_bucket", "_count", "_sum")
HEALTH = HealthSettings()


def make_rule_id(rule: dict[str, Any]) -> str:
    return f"{rule['alert']}-{rule['labels'].get('ticket_severity', '')}".rstrip("-")


def is_known(metric: str) -> bool:
    if metric in names.METRICS or metric in RECORDED or metric == "up":
        return True
    base = next((metric.removesuffix(suffix) for suffix in SUFFIXES if metric.endswith(suffix)), "")
    return base in names.METRICS and names.METRICS[base].kind == "histogram"


def find_metrics(expr: str) -> set[str]:
    expr_without_texts = re.sub(r'"[^"]*"', '""', expr)
    return set(re.findall(r"(?<![\w:{,])((?:[a-z_]+:)?queenright_[a-z0-9_:]+|up)\b", expr_without_texts))


def run_promtool(*arguments: object) -> str:
    """Run promtool; return its error output, empty if there is none."""
    program = find_program("promtool")
    assert program is not None, "this test needs the promtool program: `make test` fetches it"
    result = subprocess.run([program, *map(str, arguments)], text=True, capture_output=True, timeout=120)
    return result.stdout + result.stderr if result.returncode else ""


def test_every_rule_is_valid_for_promtool() -> None:
    assert run_promtool("check", "rules", *FILES) == ""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("record") or make_rule_id(rule))
def test_rule_is_promql_over_metrics_that_exist(rule: dict[str, Any]) -> None:
    parse(rule["expr"])
    metrics = find_metrics(rule["expr"])
    assert metrics or rule.get("alert") == "QueenrightWatchdog"
    assert {name for name in metrics if not is_known(name)} == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("record") or make_rule_id(rule))
def test_rule_uses_only_labels_of_its_metrics(rule: dict[str, Any]) -> None:
    for metric, selector in re.findall(r"(queenright_\w+)\{([^}]*)\}", rule["expr"]):
        if metric not in names.METRICS:
            continue
        labels = set(re.findall(r"(\w+)\s*[=!]~?", selector))
        assert labels <= {*names.METRICS[metric].labels, names.PARTITION_LABEL}


@pytest.mark.parametrize("rule", ALERTS, ids=make_rule_id)
def test_alert_is_named_labelled_and_explained(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Queenright[A-Z][A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info", "none"}
    assert rule["labels"]["source"] in {names.SOURCE_RULES, names.SOURCE_MONITOR}
    assert "$value" not in str(rule["labels"])
    texts = rule["annotations"]
    assert texts["summary"].endswith(".")
    assert texts["summary"].count(". ") == 0
    assert "$value" not in texts["summary"]
    assert "$value" in texts["description"] or re.search(r"absent\(|== [01]", rule["expr"])
    assert texts["runbook_url"] == f"http://127.0.0.1:8420/runbooks/{rule['alert']}"
    assert texts["dashboard_url"]
    assert "for" in rule or rule["alert"] == "QueenrightWatchdog"


@pytest.mark.parametrize("rule", ALERTS, ids=make_rule_id)
def test_alert_has_a_runbook(rule: dict[str, Any]) -> None:
    text = read_runbook(rule["alert"]) or ""
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings[:3] == ["Meaning", "What you see", "First three commands"]
    assert headings[-3:] == ["False alarm?", "Silence", "Escalate"]
    commands = text.split("First three commands\n\n```sh\n")[1].split("\n```")[0].splitlines()
    assert len(commands) == 3


def check_command(line: str) -> None:
    """Parse a command line with its options and arguments, without running it."""
    command: Any = typer.main.get_command(app)
    name, *words = shlex.split(line)
    while words and words[0] in getattr(command, "commands", {}):
        name, *words = words
        command = command.commands[name]
    assert not (words and hasattr(command, "commands")), f"No such command: {line}"
    command.make_context(name, words)


def test_unknown_command_in_a_description_is_detected() -> None:
    check_command("queenright breakers reset NAME")
    for line in ("queenright mend", "queenright breakers shut NAME", "queenright list --wrong"):
        with pytest.raises(Exception, match=r"No such|Got unexpected"):
            check_command(line)


@pytest.mark.parametrize("rule", ALERTS, ids=make_rule_id)
def test_runbook_commands_and_links_exist(rule: dict[str, Any]) -> None:
    text = read_runbook(rule["alert"]) or ""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.S)).splitlines()
    inline = re.findall(r"`(queenright [^`]+)`", text)
    for line in [line for line in blocks if line.startswith("queenright ")] + inline:
        check_command(line)
    for path in re.findall(r"`(docs/[^`]+)`", text):
        assert (prometheus_folder().parents[1] / path).is_file(), path
    for mention in re.findall(r"queenright [^.,:;]+", rule["annotations"]["description"]):
        check_command(mention)


RECEIVERS = {
    ("monitor", "critical"): "on-call",
    ("monitor", "warning"): "on-call-slack",
    ("monitor", "none"): "deadman",
    ("rules", "critical"): "judge",
    ("rules", "warning"): "judge",
    ("rules", "info"): "judge",
}


@pytest.mark.parametrize("rule", ALERTS, ids=make_rule_id)
def test_alert_reaches_its_audience(rule: dict[str, Any]) -> None:
    program = find_program("amtool")
    assert program is not None, "this test needs the amtool program: `make test` fetches it"
    config = alertmanager_folder() / "alertmanager.yml"
    alert_labels = {"alertname": rule["alert"], "cluster": "default", **rule["labels"]}
    labels = [f"{name}={value}" for name, value in alert_labels.items() if "{{" not in value]
    routing = subprocess.run(
        [program, "config", "routes", "test", f"--config.file={config}", *labels],
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert routing.returncode == 0, routing.stderr
    assert routing.stdout.strip() == RECEIVERS[alert_labels["source"], alert_labels["severity"]]


def test_failed_recovery_pages_once_through_its_ticket() -> None:
    """B72: after the last attempt a person is notified, through the channels of the settings."""
    monitor = HealthMonitor(HEALTH)
    failure_event = AgentEvent(
        type=EventType.RECOVERY_FAILED,
        time=10.0,
        agent_id="bee",
        session_id="s",
        incarnation_id="one",
        data={"exhausted": True, "reason": "3 attempts failed"},
    )
    monitor.apply(failure_event, 10.0)
    worker = monitor.get("bee", "s")
    assert worker is not None
    finding = detect_recovery_failed(worker.vitals, HEALTH, 10.0)
    assert finding is not None
    assert finding.ticket

    assert alert_severity(finding.severity) == HEALTH.alerting.recovery_failed.severity == "critical"
    [rule] = [rule for rule in ALERTS if rule["alert"] == "QueenrightRecoveryFailed"]
    assert rule["labels"]["severity"] == "warning"


def test_breaker_alert_follows_the_settings() -> None:
    [rule] = [rule for rule in ALERTS if rule["alert"] == "QueenrightCircuitBreakerOpen"]
    assert rule["labels"]["severity"] == HEALTH.alerting.circuit_breaker_open.severity
    assert HEALTH.alerting.circuit_breaker_open.channels == ("slack",)


def test_breaker_alert_waits_for_five_plus_three_timeouts() -> None:
    """A breaker that closes at its first or second probe needs no alert."""
    [rule] = [rule for rule in ALERTS if rule["alert"] == "QueenrightCircuitBreakerOpen"]
    minutes = HEALTH.circuit_breaker.default.recovery_timeout_seconds / 60
    assert f"[{5 * minutes:g}m]" in rule["expr"]
    assert rule["for"] == f"{3 * minutes:g}m"


def test_outcome_series_in_rules_exist_from_the_start() -> None:
    """B74: counters for single events must not lose the first."""
    registry = CollectorRegistry()
    ServiceMetrics(registry, list)
    mentions = re.findall(r'(queenright_recoveries_total)\{outcome="(\w+)"\}', str(RULES))
    assert {outcome for _, outcome in mentions} == {"exhausted", "from_start"}
    assert [registry.get_sample_value(name, {"outcome": outcome}) for name, outcome in mentions] == [0, 0]


@pytest.mark.parametrize("metric", [names.TELEMETRY_DROPPED, names.SERIES_LIMITED], ids=str)
def test_shared_metrics_are_selected_in_both_scopes(metric: names.MetricName) -> None:
    scopes = Selectors(service='job="hive"', worker='job="bees"')

    assert select(scopes, metric) == metric.name
    assert select(scopes, names.SERIES_LEFT_OUT) == 'queenright_series_left_out{job="hive"}'


def test_restart_from_the_beginning_is_notified() -> None:
    """B74: a person is notified even though work continues; the message says where to find details."""
    [rule] = [rule for rule in ALERTS if rule["alert"] == "QueenrightTaskRestartedFromStart"]
    assert 'queenright_recoveries_total{outcome="from_start"}' in rule["expr"]
    assert RECEIVERS[rule["labels"]["source"], rule["labels"]["severity"]] == "on-call-slack"
    for source in ("queenright recoveries", "the console", "queenright interventions"):
        assert source in rule["annotations"]["description"]


def test_descriptions_name_commands_and_no_api_paths() -> None:
    texts = {rule["alert"]: str(rule["annotations"]) for rule in ALERTS}
    assert [alert for alert, text in texts.items() if "/api/" in text] == []


def test_intervention_itself_has_a_runbook() -> None:
    assert read_runbook(names.ALERT_INTERVENTION)


@pytest.mark.parametrize(
    ("name", "threshold"),
    [
        ("QueenrightWorkerStalled", f">= {HEALTH.stall.unknown_seconds:g}"),
        ("QueenrightLoop", f">= {HEALTH.stall.unknown_seconds:g}"),
        ("QueenrightLoop", f">= {HEALTH.bands.warning}"),
        ("QueenrightHeartbeatMissing", f">= {HEALTH.heartbeat.timeout_seconds:g}"),
        ("QueenrightErrorRate", f">= {HEALTH.loops.error_streak}"),
        ("QueenrightJudgeSilent", f">= {2 * HEALTH.judge.interval_seconds:g}"),
    ],
)
def test_thresholds_equal_those_of_the_detectors(name: str, threshold: str) -> None:
    [rule] = [rule for rule in ALERTS if rule["alert"] == name]
    assert re.search(rf"{re.escape(threshold)}\b", rule["expr"])


def test_bands_equal_those_of_the_detectors() -> None:
    bands = {
        alert_rule["labels"]["ticket_severity"]: alert_rule["expr"]
        for alert_rule in ALERTS
        if alert_rule["alert"] == "QueenrightRetryStorm"
    }
    limits = {band: re.findall(r"(?:>=|<) (\d+)", expr) for band, expr in bands.items()}
    bands_settings = HEALTH.bands
    assert limits == {
        "medium": [str(bands_settings.medium), str(bands_settings.high)],
        "high": [str(bands_settings.high), str(bands_settings.critical)],
        "critical": [str(bands_settings.critical)],
    }


def test_monitor_is_blind_after_two_sweeps_missed() -> None:
    [rule] = [rule for rule in ALERTS if rule["alert"] == "QueenrightMonitorBlind"]
    assert rule["for"] == f"{2 * HEALTH.health_check.interval_seconds / 60:g}m"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("record") or make_rule_id(rule))
def test_counters_use_a_rate_over_four_scrapes(rule: dict[str, Any]) -> None:
    for window in re.findall(r"(?:rate|increase)\([^\[]*\[(\d+)m\]", rule["expr"]):
        assert int(window) * 60 >= 4 * 15
    for metric in re.findall(r"\b(queenright_\w+_total)\b(?!\{[^}]*\}\[|\[)", rule["expr"]):
        # The exception: a new counter has no earlier sample to increase from.
        assert f"{metric} unless" in rule["expr"] or f"{metric} offset" in rule["expr"]
