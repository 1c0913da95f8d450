"""
The tests that promtool runs (``alerting/prometheus/tests``) as values, and a fast way to run them.

A test's name starts with a tag for what it shows: ``fires:``, ``boundary:``, ``waiting:`` and so on. promtool
evaluates every rule in the files that a test names, at every step. So each test gets a copy of the rules with
only its alert and the rules that the alert reads, in the same groups and the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from queenright.alerting.files import prometheus_folder, rules_folder
from tests.programs import run

Rule = dict[str, Any]
TESTS: Final = tuple(sorted((prometheus_folder() / "tests").glob("*.yml")))
_RECORDED: Final = re.compile(r"\b\w+:\w+:\w+")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_ALERTS: Final = re.compile(r'ALERTS\{alertname="(\w+)"')


@dataclass(frozen=True, slots=True)
class AlertCheck:
    """An alert that a test expects at some time: its labels, among them ``alertstate``."""

    alert: str
    labels: dict[str, str]
    annotations: dict[str, str] | None
    """None if a test checks only the state."""

    @property
    def fires(self) -> bool:
        """Return whether it fires, rather than waits for its ``for`` duration."""
        return self.labels["alertstate"] == "firing"


@dataclass(frozen=True, slots=True)
class RuleTest:
    """One test: its file, tag and series, and its expected alerts by time."""

    file: str
    name: str
    tag: str
    series: dict[str, str]
    alerts: frozenset[str]
    expected: tuple[tuple[float, tuple[AlertCheck, ...]], ...]
    """All expected alerts by time in seconds; none means that no alert may exist."""

    @property
    def length(self) -> str:
        """Return ``long`` if promtool evaluates the rules over more than four hours, which takes a second."""
        return "long" if self.expected[-1][0] > 4 * 3600 else "short"

    @property
    def all_expected(self) -> tuple[AlertCheck, ...]:
        """Return all alerts that the test expects at any time."""
        return tuple(check for _, checks in self.expected for check in checks)


def _read_yaml(file: Path) -> Any:
    # like safe_load, in C
    return yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def list_rule_groups() -> tuple[tuple[str, Rule], ...]:
    """Return every group in the rule files, as ``(file, group)``."""
    files = sorted(rules_folder().glob("*.yml"))
    return tuple((file.name, group) for file in files for group in _read_yaml(file)["groups"])


def list_rules() -> list[Rule]:
    """Return every rule."""
    return [rule for _, group in list_rule_groups() for rule in group["rules"]]


def list_alerts() -> list[Rule]:
    """Return every alert, once per band."""
    return [rule for rule in list_rules() if "alert" in rule]


def get_distinguishing_labels(rule: Rule) -> dict[str, str]:
    """Return the labels by which an alert's bands differ; empty if it has only one band."""
    bands = [other for other in list_alerts() if other["alert"] == rule["alert"]]
    names = {name for other in bands for name in other["labels"]}
    differing_names = {
        name for name in names if len({other["labels"].get(name) for other in bands}) == len(bands) > 1
    }
    return {name: rule["labels"][name] for name in sorted(differing_names)[-1:]}


def make_alert_id(rule: Rule) -> str:
    """Return an alert's name with its band, as a test id."""
    return "-".join([rule["alert"].removeprefix("Queenright"), *get_distinguishing_labels(rule).values()])


@cache
def list_rule_tests() -> tuple[RuleTest, ...]:
    """Return every test of every file."""
    return tuple(_parse_test(file, test) for file in TESTS for test in _read_yaml(file)["tests"])


def _parse_test(file: Path, test: dict[str, Any]) -> RuleTest:
    expected: dict[float, list[AlertCheck]] = {}
    names: set[str] = set()
    for check in test.get("alert_rule_test", ()):
        checks = expected.setdefault(to_seconds(check["eval_time"]), [])
        names.add(check["alertname"])
        for alert in check.get("exp_alerts") or ():
            labels = {**alert["exp_labels"], "alertstate": "firing"}
            checks.append(AlertCheck(check["alertname"], labels, alert.get("exp_annotations", {})))
    for check in test.get("promql_expr_test", ()):
        checks = expected.setdefault(to_seconds(check["eval_time"]), [])
        [name] = set(_ALERTS.findall(check["expr"]))
        names.add(name)
        for sample in check.get("exp_samples") or ():
            checks.append(AlertCheck(name, dict(_LABEL.findall(sample["labels"])), None))
    return RuleTest(
        file=file.stem,
        name=test["name"],
        tag=test["name"].partition(":")[0],
        series={series["series"]: str(series["values"]) for series in test.get("input_series", ())},
        alerts=frozenset(names),
        expected=tuple(sorted((time, tuple(checks)) for time, checks in expected.items())),
    )


def to_seconds(duration: str) -> float:
    """Convert a duration of Prometheus to seconds."""
    sizes = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    return float(sum(int(number) * sizes[unit] for number, unit in re.findall(r"(\d+)([smhd])", duration)))


# -- running the tests ----------------------------------------------------------------------------


def _keep_rule(rule: Rule) -> Rule:
    return rule


def run_tests(
    folder: Path,
    version: str,
    change: Callable[[Rule], Rule] = _keep_rule,
    *,
    should_run: Callable[[RuleTest], bool] = lambda _: True,
) -> str:
    """
    Run the tests, and return promtool's output; empty if all pass.

    Args:
        folder: Where the copies are written.
        version: The version of promtool.
        change: A change to apply to each rule first.
        wanted: Whether to run a test.
    """
    paths = []
    for file in TESTS:
        content = _read_yaml(file)
        content["tests"] = [test for test in content["tests"] if should_run(_parse_test(file, test))]
        if not content["tests"]:
            continue
        names = {name for test in content["tests"] for name in _parse_test(file, test).alerts}
        rules_path = folder / f"{file.stem}.rules.yml"
        rules_path.write_text(yaml.safe_dump({"groups": list(_select_groups(names, change))}))
        content["rule_files"] = [rules_path.name]
        paths.append(folder / file.name)
        paths[-1].write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    result = run("promtool", "test", "rules", *paths, version=version)
    return result.stdout + result.stderr if result.returncode else ""


def _select_groups(names: set[str], change: Callable[[Rule], Rule]) -> Iterator[Rule]:
    """Yield the groups with only these alerts, and all rules that they read, directly or indirectly."""
    rules = list_rules()
    inputs_by_record = {
        rule["record"]: set(_RECORDED.findall(rule["expr"])) for rule in rules if "record" in rule
    }
    needed_names = set(names)
    new_names = {
        input_name
        for rule in rules
        if rule.get("alert") in names
        for input_name in _RECORDED.findall(rule["expr"])
    }
    while new_names:
        needed_names |= new_names
        new_names = {other for name in new_names for other in inputs_by_record.get(name, ())} - needed_names
    # Recording rules first, as promtool evaluates groups in the order of their files.
    for _, group in sorted(list_rule_groups(), key=lambda group: group[0] != "recording.yml"):
        remaining_rules = [
            change(dict(rule))
            for rule in group["rules"]
            if (rule.get("alert") or rule["record"]) in needed_names
        ]
        if remaining_rules:
            yield {"name": group["name"], "rules": remaining_rules}
