"""Properties of good rule sets, checked for ours, one per test."""

from __future__ import annotations

import re
from dataclasses import fields
from itertools import pairwise

import pytest
import yaml
from prometheus_client import CollectorRegistry

from queenright.alerting.files import rules_folder
from queenright.alerting.rules import Alert, RecordingRule, rule_groups
from queenright.alerting.rules.burn import SPEEDS, Objective, objectives
from queenright.alerting.rules.rule import Selectors
from queenright.health.objectives import compute_burn_threshold
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.instrumentation.metrics import WorkerFamilies
from queenright.server.metrics.event_metrics import EventMetrics
from queenright.server.metrics.metrics import ServiceMetrics
from tests.alerting.promtool_tests import (
    Rule,
    get_distinguishing_labels,
    list_alerts,
    list_rules,
    make_alert_id,
    to_seconds,
)
from tests.programs import VERSIONS, run
from tests.promql import list_kept_labels

RULES, ALERTS = list_rules(), list_alerts()
RECORDED = [rule for rule in RULES if "record" in rule]
SCRAPE = 15


def get_rule_name(rule: Rule) -> str:
    return str(rule["record"]) if "record" in rule else make_alert_id(rule)


each_rule = pytest.mark.parametrize("rule", RULES, ids=get_rule_name)
each_alert = pytest.mark.parametrize("rule", ALERTS, ids=make_alert_id)
each_record = pytest.mark.parametrize("rule", RECORDED, ids=get_rule_name)


@each_alert
def test_alert_has_summary_description_and_links(rule: Rule) -> None:
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert annotations["description"].endswith((".", "list", "list --open"))
    assert "$value" not in str(rule["labels"]) + annotations["summary"]


def test_alerts_of_one_name_have_one_summary() -> None:
    for rule in ALERTS:
        summaries = {other["annotations"]["summary"] for other in ALERTS if other["alert"] == rule["alert"]}
        assert len(summaries) == 1, rule["alert"]


@each_alert
def test_one_failed_scrape_does_not_alert(rule: Rule) -> None:
    """All but the Watchdog wait for a second evaluation."""
    assert to_seconds(rule.get("for", "0s")) >= (0 if rule["alert"] == "QueenrightWatchdog" else SCRAPE)


DOES_NOT_FLAP = {
    "QueenrightWorkerStalled": "an age falls once, at the next activity",
    "QueenrightWorkerStalledInPhase": "its window of ten minutes smooths it",
    "QueenrightRetryStorm": "a count rises in steps, and falls with an ACCEPT",
    "QueenrightLoop": "its window of ten minutes smooths it",
    "QueenrightHeartbeatMissing": "an age falls once, at the next heartbeat",
    "QueenrightCheckpointStale": "an age falls once, at the next checkpoint",
    "QueenrightWaitingForUser": "an answer does not change",
    "QueenrightJudgeOnRules": "its window of 15 minutes smooths it",
    "QueenrightDeliveriesFailing": "its window of 15 minutes smooths it",
    "QueenrightTelemetryDropped": "its window of ten minutes smooths it",
    "QueenrightTelemetryRejected": "its window of ten minutes smooths it",
    "QueenrightEventsDropped": "its window of ten minutes smooths it",
    "QueenrightSeriesLimited": "its window of an hour smooths it",
    "QueenrightCircuitBreakerOpen": "its window of five minutes averages the changes",
    "QueenrightRecoveryFailed": "its window of an hour smooths it",
    "QueenrightTaskRestartedFromStart": "its window of an hour smooths it",
    "QueenrightWatchdog": "it always fires",
}


def test_flapping_alerts_keep_firing() -> None:
    keeping_alerts = {rule["alert"] for rule in ALERTS if "keep_firing_for" in rule}
    assert keeping_alerts | set(DOES_NOT_FLAP) == {rule["alert"] for rule in ALERTS}
    assert not keeping_alerts & set(DOES_NOT_FLAP)


def test_only_fleet_and_monitor_alerts_page() -> None:
    for rule in ALERTS:
        agents = "agent" in re.findall(r"by \(([^)]*)\)", rule["expr"])[:1] or "$labels.agent" in str(rule)
        assert rule["labels"]["source"] == ("rules" if agents else "monitor"), rule["alert"]


@pytest.mark.parametrize("objective", objectives(HealthSettings(), Selectors()), ids=lambda o: o.name)
def test_burn_rate_has_four_speeds_with_two_windows(
    objective: Objective,
) -> None:
    pairs = [(speed.factor, speed.short, speed.long) for speed in SPEEDS]
    assert pairs == [(14.4, "5m", "1h"), (6, "30m", "6h"), (3, "2h", "1d"), (1, "6h", "3d")]
    burn_rules = [rule for rule in ALERTS if rule["alert"] == objective.alert]
    assert [get_distinguishing_labels(rule)["window"] for rule in burn_rules] == ["1h", "6h", "1d", "3d"]
    for rule, (factor, short_window, long_window) in zip(burn_rules, pairs, strict=True):
        assert f"ratio_rate{short_window} " in rule["expr"]
        assert f"ratio_rate{long_window} " in rule["expr"]
        assert re.search(
            rf"{to_seconds(long_window):g} \* avg_over_time\([\w:]+\[{long_window}\]\) >= \d+", rule["expr"]
        )
        limits = parse_burn_limits(rule)
        assert limits == pytest.approx([compute_burn_threshold(objective.budget, factor)] * 2)
        assert all(0 < limit < 1 for limit in limits), "it could never fire"


def parse_burn_limits(rule: Rule) -> list[float]:
    """Return the thresholds of a burn rate: a multiple of the budget, or a power."""
    powers = re.findall(r"> 1 - ([\d.]+) \^ ([\d.]+)", rule["expr"])
    multiples = re.findall(r"> ([\d.]+) \* ([\d.]+)", rule["expr"])
    return [1 - float(base) ** float(factor) for base, factor in powers] + [
        float(factor) * float(budget) for factor, budget in multiples
    ]


def test_burn_rate_compares_with_a_multiple_of_the_budget() -> None:
    """The factors 14.4, 6, 3 and 1; where no multiple could fire, the threshold is nearly 1."""
    assert [compute_burn_threshold(0.05, speed.factor) for speed in SPEEDS] == pytest.approx(
        [0.72, 0.3, 0.15, 0.05]
    )
    assert [compute_burn_threshold(0.25, speed.factor) for speed in SPEEDS] == pytest.approx(
        [0.98411, 0.82202, 0.75, 0.25], abs=1e-5
    )


def test_faster_burn_is_more_urgent_and_needs_more() -> None:
    for name in {rule["alert"] for rule in ALERTS if rule["alert"].endswith("Burn")}:
        burn_rules = [rule for rule in ALERTS if rule["alert"] == name]
        limits = [parse_burn_limits(rule)[0] for rule in burn_rules]
        assert all(faster > slower for faster, slower in pairwise(limits))
        assert [rule["labels"]["severity"] for rule in burn_rules] == ["critical"] * 2 + ["warning"] * 2


@each_record
def test_recording_is_named_by_level_metric_and_operations(rule: Rule) -> None:
    level, metric, operations = rule["record"].split(":")
    assert re.fullmatch(r"cluster|agent|agent_instance|agent_verdict|agent_instance_outcome", level)
    assert metric.startswith("queenright_")
    assert not metric.endswith("_total")
    assert re.fullmatch(r"last|sum|ratio|avg\d+[mhd]|rate\d+[mhd]|ratio_rate\d+[mhd]|p\d+_\d+m", operations)
    if level == "cluster":
        assert list_kept_labels(rule["expr"]) <= {"le"}
    else:
        by_labels = {
            part
            for by_clause in re.findall(r"by \(([^)]*)\)", rule["expr"])
            for part in by_clause.split(", ")
        }
        expected_labels = {"agent", *(["job", "instance"] if "instance" in level else [])}
        assert expected_labels | ({level.rpartition("_")[2]} & {"verdict", "outcome"}) <= by_labels | {
            "agent",
            "job",
            "instance",
        }


@each_rule
def test_every_aggregation_names_its_labels(rule: Rule) -> None:
    """`without` keeps labels that a later version adds; a bare aggregate is one number on purpose."""
    assert "without" not in rule["expr"]
    for function, clause in re.findall(r"\b(sum|max|min|avg|count)\s*(by \([^)]*\)|\()", rule["expr"]):
        # Aggregates about one agent name it; those about the fleet or the monitor may be one number.
        is_about_all = rule.get("labels", {}).get("source") == "monitor"
        single_number = rule.get("record", "").startswith("cluster:") or is_about_all
        assert clause != "(" or single_number, f"{function} over everything in {get_rule_name(rule)}"


@each_rule
def test_share_divides_two_sums(rule: Rule) -> None:
    for match in re.finditer(r"\b(?:sum|avg)\b(?: by \([^)]*\))? ?\(", rule["expr"]):
        assert "/" not in read_bracketed(rule["expr"][match.end() :]), get_rule_name(rule)


def read_bracketed(text: str) -> str:
    """Return the text up to the closing bracket."""
    depth = 1
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[:index]
    raise AssertionError(f"no bracket closes {text}")


@each_rule
def test_counters_are_read_only_by_rates_over_four_scrapes(rule: Rule) -> None:
    for window in re.findall(r"(?:rate|increase)\([^\[]*\[(\w+)\]", rule["expr"]):
        assert to_seconds(window) >= 4 * SCRAPE
    counters = [metric.name for metric in names.METRICS.values() if metric.kind == "counter"]
    for name in counters:
        for before in re.findall(rf"(\w*\(?){name}\b(?!\S* (?:unless|offset))", rule["expr"]):
            first_increase = f"unless {name}" in rule["expr"]
            assert before in ("rate(", "increase(") or first_increase, (get_rule_name(rule), before)


@each_rule
def test_quantile_uses_one_summed_distribution(rule: Rule) -> None:
    for argument in re.findall(r"histogram_quantile\(\s*[\d.]+,\s*(.*)", rule["expr"], re.S):
        assert re.match(r"sum by \((\w+, )?le\) \(rate\(", argument)


@each_rule
def test_rules_use_no_id_labels(rule: Rule) -> None:
    rule_text = rule["expr"] + str(rule.get("labels", ""))
    assert not re.search(r"session|incarnation|ticket_id|trace_id|task_id|user_id", rule_text)


def list_exposed_values() -> dict[str, dict[str, set[str]]]:
    """Return the series of a service and of a worker with some activity: metric, label, values."""
    registry = CollectorRegistry()
    ServiceMetrics(registry, list)
    EventMetrics(registry)
    agent = WorkerFamilies.of(registry).acquire("agent")
    for verdict in ("accept", "retry", "continue", "escalate", "error"):
        agent.count_step("plan", verdict, 1.0, None)
    values_by_metric: dict[str, dict[str, set[str]]] = {}
    for family in registry.collect():
        for sample in family.samples:
            labels = values_by_metric.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return values_by_metric


VALUES: dict[str, dict[str, set[str]]] = {
    "queenright_judge_checks_total": {"outcome": {"unknown"}},
    "queenright_llm_fallbacks_total": {"reason": {"budget"}},
    "queenright_notifications_total": {"outcome": {"delivered", "retried", "failed"}},
    "queenright_worker_waiting": {"reason": {str(reason) for reason in names.WaitingReason}},
    "queenright_worker_tool_calls_total": {"outcome": {str(outcome) for outcome in names.ToolOutcome}},
    "queenright_circuit_breaker_state": {"state": {"closed", "open", "half_open"}},
    "queenright_time_to_intervention_seconds_bucket": {"le": {"300.0"}},
}
"""Label values that a registry shows only after the first event, from the code's tables."""


@each_rule
def test_label_values_in_rules_exist(rule: Rule) -> None:
    exposed_metrics = list_exposed_values()
    for metric, selector in re.findall(r"(queenright_\w+)\{([^}]*)\}", rule["expr"]):
        for label, operator, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', selector):
            if label == names.PARTITION_LABEL:
                continue  # Each partition of a cluster adds this label.
            possible = exposed_metrics.get(metric, {}).get(label, set()) | VALUES.get(metric, {}).get(
                label, set()
            )
            for alternative in value.split("|") if "~" in operator else [value]:
                assert alternative in possible, (
                    f"{get_rule_name(rule)}: {metric} never has {label}={alternative!r}, "
                    f"only {sorted(possible)}"
                )


TIMES = re.compile(r"time\(\) - .*?(?:>=|>) ([\d.]+)", re.S)


def test_ages_are_compared_with_seconds() -> None:
    ages = {rule["alert"]: TIMES.findall(rule["expr"]) for rule in ALERTS if "time() -" in rule["expr"]}
    assert set(ages) >= {"QueenrightWorkerStalled", "QueenrightHeartbeatMissing", "QueenrightJudgeSilent"}
    for rule in ALERTS:
        if "time() -" in rule["expr"]:
            assert "_timestamp_seconds" in rule["expr"], rule["alert"]


def test_files_match_the_default_settings() -> None:
    file_groups = [
        group
        for file in sorted(rules_folder().glob("*.yml"))
        for group in yaml.safe_load(file.read_text())["groups"]
    ]
    generated_groups = {group.name: group.to_dict() for group in rule_groups(HealthSettings())}
    assert {group["name"]: group for group in file_groups} == generated_groups


CHANGES = {
    "stall": ({"stall": {"unknown_seconds": 777}}, {"QueenrightWorkerStalled", "QueenrightLoop"}),
    "bands": (
        {"bands": {"warning": 4, "medium": 11, "high": 16, "critical": 21}},
        {"QueenrightRetryStorm", "QueenrightLoop"},
    ),
    "heartbeat": (
        {"heartbeat": {"interval_seconds": 100, "timeout_seconds": 333}},
        {"QueenrightHeartbeatMissing"},
    ),
    "bad steps": ({"rules": {"bad_steps": {"error_budget": 0.02}}}, {"QueenrightBadStepsBurn"}),
    "breaker": (
        {"circuit_breaker": {"default": {"recovery_timeout_seconds": 30}}},
        {"QueenrightCircuitBreakerOpen"},
    ),
}


@pytest.mark.parametrize(("changes", "affected"), CHANGES.values(), ids=CHANGES)
def test_changed_setting_changes_only_its_rules(changes: dict[str, object], affected: set[str]) -> None:
    def list_rules_with(settings: HealthSettings) -> list[Alert | RecordingRule]:
        return [rule for group in rule_groups(settings) for rule in group.rules]

    before, after = (
        list_rules_with(HealthSettings()),
        list_rules_with(HealthSettings.model_validate(changes)),
    )
    changed_rules = {
        old.name
        for old, new in zip(before, after, strict=True)
        if (old.expr, get_waits(old)) != (new.expr, get_waits(new))
    }
    assert {name for name in changed_rules if name.startswith("Queenright")} == affected


def get_waits(rule: Alert | RecordingRule) -> list[str]:
    return [
        str(getattr(rule, field.name)) for field in fields(rule) if field.name in ("for_", "keep_firing_for")
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_rules_are_valid_without_warnings_in_both_versions(version: str) -> None:
    result = run(
        "promtool",
        "check",
        "rules",
        "--lint=all",
        "--lint-fatal",
        *sorted(rules_folder().glob("*.yml")),
        version=version,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_last_heartbeat_outlives_its_process_by_an_hour() -> None:
    """A killed process ends its series; the recorded value continues while the target is down."""
    heartbeat_rule, *other_rules = [rule for rule in RECORDED if rule["record"].endswith(":last")]
    assert len(other_rules) == 3
    assert (
        f"or {heartbeat_rule['record']} > time() - 3600 and on (job, instance) up == 0"
        in heartbeat_rule["expr"]
    )
    for rule in other_rules:
        assert f"or {rule['record']} and on (job, instance) up == 0 and on" in rule["expr"]
        assert rule["expr"].endswith(heartbeat_rule["record"])


def test_every_failure_mode_of_the_monitor_has_an_alert() -> None:
    alerts = (
        "MonitorDown MonitorBlind NotListening JudgeSilent OutboxStuck DeliveriesFailing TelemetryDropped"
    )
    cluster = (
        "ClusterWithoutOwner ClusterSeveralOwners ClusterStreamDown ClusterProcessCutOff ClusterBacklogGrows"
    )
    other = "SeriesLimited ClockSkew Watchdog"
    alert_names = {f"Queenright{failure_mode}" for failure_mode in f"{alerts} {cluster} {other}".split()}
    assert alert_names <= {rule["alert"] for rule in ALERTS}
    [monitor_down] = [rule for rule in ALERTS if rule["alert"] == "QueenrightMonitorDown"]
    assert "absent(" in monitor_down["expr"]
    [watchdog] = [rule for rule in ALERTS if rule["alert"] == "QueenrightWatchdog"]
    assert (watchdog["expr"], watchdog["labels"]["severity"]) == ("vector(1)", "none")


def test_cluster_alerts_read_only_series_that_one_process_does_not_have() -> None:
    """Without a cluster, these alerts cannot fire."""
    rows = [rule for rule in ALERTS if rule["alert"].startswith("QueenrightCluster")]
    assert len(rows) == 6
    for rule in rows:
        first = re.findall(r"queenright_\w+", rule["expr"])
        assert first
        assert {name.removeprefix("queenright_").split("_")[0] for name in first} == {"cluster"}
        assert "absent(" not in rule["expr"]
        assert " or " not in rule["expr"]
