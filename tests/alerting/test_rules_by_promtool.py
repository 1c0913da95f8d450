"""promtool shows that every alert works as intended; other tests show that the promtool tests would fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.alerting.promtool_tests import (
    TESTS,
    AlertCheck,
    Rule,
    RuleTest,
    get_distinguishing_labels,
    list_alerts,
    list_rule_tests,
    make_alert_id,
    run_tests,
)
from tests.programs import VERSIONS, run

RULES = list_alerts()

FIRES_ALWAYS = "it is meant to fire always"
ABOUT_FLEET = "it is about the fleet or the monitor, which a waiting worker does not excuse"
SERVICE_SERIES = "its series come from the service; `absent:` shows what happens without them"
WORKER_SERIES = "a worker's series end by unloading or with a killed process, which other tests show"
DEAD_PROCESS = "a dead process does none of this; QueenrightHeartbeatMissing covers it"
NO_KEEP_FIRING = "it has no keep_firing_for"

NOT_APPLICABLE: dict[str, dict[str, str]] = {
    "boundary": {"Watchdog": FIRES_ALWAYS},
    "resolves": {"Watchdog": FIRES_ALWAYS},
    "waiting": {"HeartbeatMissing": "a waiting worker still sends heartbeats"},
    "killed": {"RetryStorm": DEAD_PROCESS, "Loop": DEAD_PROCESS, "WaitingForUser": DEAD_PROCESS},
}
"""By tag, the alerts that need no such test, and the reason."""


def get_reason_without_test(tag: str, rule: Rule) -> str | None:
    """Return why an alert needs no test with this tag; None if it does."""
    name, source = rule["alert"].removeprefix("Queenright"), rule["labels"]["source"]
    if tag == "keeps":
        return None if "keep_firing_for" in rule else NO_KEEP_FIRING
    if tag in ("waiting", "unloaded", "killed") and source == "monitor":
        return ABOUT_FLEET if tag == "waiting" else SERVICE_SERIES
    if tag == "absent" and source == "rules":
        return WORKER_SERIES
    return NOT_APPLICABLE.get(tag, {}).get(name)


def find_tests(rule: Rule, tag: str) -> list[RuleTest]:
    """Return the tests with this tag in which the alert, in its band, appears."""
    band = get_distinguishing_labels(rule).items()
    return [
        test
        for test in list_rule_tests()
        if test.tag == tag
        and any(check.alert == rule["alert"] and band <= check.labels.items() for check in test.all_expected)
    ]


@pytest.mark.parametrize("length", ["short", "long"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_promtool_test_passes(version: str, length: str, tmp_path: Path) -> None:
    """B78, B79: the tests cover firing, boundaries, waiting, unloading, killed processes and resolving."""
    assert run_tests(tmp_path, version, should_run=lambda test: test.length == length) == ""


def test_every_band_of_every_alert_has_a_short_test() -> None:
    for rule in RULES:
        assert any(test.length == "short" for test in find_tests(rule, "fires")), make_alert_id(rule)


def test_promtool_test_with_file_names_passes_unchanged() -> None:
    """A person runs it like this: `promtool test rules loop.yml`."""
    [file] = [file for file in TESTS if file.stem == "loop"]
    result = run("promtool", "test", "rules", file)
    assert (result.returncode, result.stderr) == (0, "")


TAGS = ("fires", "boundary", "waiting", "unloaded", "killed", "resolves", "keeps", "absent")


@pytest.mark.parametrize("rule", RULES, ids=make_alert_id)
def test_alert_has_every_applicable_test(rule: Rule) -> None:
    """B79: each tag is tested or has a reason."""
    reasons = {tag: get_reason_without_test(tag, rule) for tag in TAGS}
    missing_tags = [tag for tag, reason in reasons.items() if reason is None and not find_tests(rule, tag)]

    assert missing_tags == [], (
        f"{make_alert_id(rule)} needs tests whose names begin with these tags and in which it appears"
    )
    assert "" not in reasons.values()


def test_every_promtool_test_has_a_tag() -> None:
    for test in list_rule_tests():
        assert test.tag in TAGS, test.name
        assert test.expected, test.name
        if test.tag in ("resolves", "keeps", "unloaded", "killed"):
            assert len(test.expected) > 1, test.name


def select_tests(tag: str) -> list[RuleTest]:
    return [test for test in list_rule_tests() if test.tag == tag]


def list_ids(tests: list[RuleTest]) -> Callable[[Callable[[RuleTest], None]], Callable[[RuleTest], None]]:
    return pytest.mark.parametrize(
        "test", tests, ids=lambda test: f"{test.file}: {test.name.partition(': ')[2]}"
    )


def test_each_alert_has_a_fires_test_with_all_its_labels_and_annotations() -> None:
    for rule in RULES:
        complete_checks = [
            check
            for test in find_tests(rule, "fires")
            for check in test.all_expected
            if check.alert == rule["alert"]
            and check.annotations
            and rule["labels"].items() <= check.labels.items()
        ]
        assert complete_checks, make_alert_id(rule)
        assert all(set(check.annotations or ()) == set(rule["annotations"]) for check in complete_checks)


@pytest.mark.parametrize("rule", RULES, ids=make_alert_id)
def test_boundary_is_tested_below_above_and_before_its_time(rule: Rule) -> None:
    if get_reason_without_test("boundary", rule):
        return
    band = get_distinguishing_labels(rule).items()
    tests = [
        test for test in select_tests("boundary") + select_tests("fires") if rule["alert"] in test.alerts
    ]
    checks_by_test = [
        (test, [check for check in checks if band <= check.labels.items()])
        for test in tests
        for _, checks in test.expected
    ]
    states = {check.labels["alertstate"] for _, checks in checks_by_test for check in checks}
    assert states == {"pending", "firing"}
    assert any(
        not checks or list_unseen_values(test, checks)
        for test, checks in checks_by_test
        if test.tag == "boundary"
    )


def list_unseen_values(test: RuleTest, checks: list[AlertCheck]) -> set[str]:
    """
    Return the agents, or the windows of a budget, whose series the test has but whose alert it does not
    expect.
    """
    series_values = {
        value for series in test.series for value in re.findall(r'(?:agent|window)="([\w-]+)"', series)
    }
    return (
        series_values - {value for check in checks for value in check.labels.values()}
        if series_values
        else set()
    )


@list_ids(select_tests("waiting"))
def test_waiting_workers_do_not_fire_while_others_do(test: RuleTest) -> None:
    waiting_workers = r'queenright_worker_waiting\{agent="([\w-]+)".*'
    series_by_worker = {
        match[1]: values
        for series, values in test.series.items()
        if (match := re.fullmatch(waiting_workers, series)) and match[1] != "control"
    }
    assert series_by_worker
    for _, checks in test.expected[:1]:
        assert checks, "without another that fires, the test would pass if nothing ever fired"
        assert not {check.labels["agent"] for check in checks} & set(series_by_worker)


@list_ids(select_tests("unloaded"))
def test_unloaded_worker_is_gone_while_its_target_is_up(test: RuleTest) -> None:
    ended_agents = {
        match[1]
        for series, values in test.series.items()
        if values.endswith("stale") and (match := re.search(r'agent="([\w-]+)"', series))
    }
    targets = [values for series, values in test.series.items() if series.startswith("up{")]
    assert ended_agents
    assert targets
    # A process may end after its worker: series removed while the target was up stay removed.
    assert all(re.fullmatch(r"1x\d+( 0x\d+)?", values) for values in targets)
    assert any(check.fires for check in test.all_expected)
    assert not {check.labels["agent"] for check in test.expected[-1][1]} & ended_agents


@list_ids(select_tests("killed"))
def test_killed_worker_fires_after_its_series_ended(test: RuleTest) -> None:
    [target] = {values for series, values in test.series.items() if series.startswith("up{")}
    outage = re.fullmatch(r"1x(\d+) 0x\d+", target)
    assert outage
    assert all(values.endswith("stale") for series, values in test.series.items() if "agent=" in series)
    end_time = (int(outage[1]) + 1) * 60
    assert any(check.fires for at, checks in test.expected if at > end_time for check in checks)


@list_ids(select_tests("resolves") + select_tests("keeps"))
def test_resolved_alert_fired_before(test: RuleTest) -> None:
    last_labels = {str(check.labels) for check in test.expected[-1][1] if check.fires}
    expected = {str(check.labels) for check in test.all_expected if check.fires}
    assert expected - last_labels


# -- sensitivity of the tests ---------------------------------------------------------------------


def list_failing_alerts(text: str) -> set[str]:
    """Return the alerts in promtool's error output."""
    return set(re.findall(r'alertname(?:=\\?"|: )(\w+)', text))


def remove_for(rule: Rule) -> Rule:
    return {key: value for key, value in rule.items() if key != "for"}


def remove_keep_firing(rule: Rule) -> Rule:
    return {key: value for key, value in rule.items() if key != "keep_firing_for"}


def remove_waiting_exclusion(rule: Rule) -> Rule:
    if "alert" not in rule:
        return rule
    exclusion = r"unless on \(agent, job, instance\) agent_instance:queenright_worker_waiting:last == 1"
    return rule | {"expr": re.sub(exclusion, "", rule["expr"])}


@pytest.mark.parametrize(
    ("change", "tag", "affected"),
    [
        (remove_for, "boundary", lambda rule: "for" in rule),
        (remove_keep_firing, "keeps", lambda rule: "keep_firing_for" in rule),
        (remove_waiting_exclusion, "waiting", lambda rule: "worker_waiting:last == 1" in rule["expr"]),
    ],
    ids=["without for", "without keep_firing_for", "without the excuse of waiting"],
)
def test_promtool_tests_fail_for_a_changed_alert(
    change: Callable[[Rule], Rule], tag: str, affected: Callable[[Rule], bool], tmp_path: Path
) -> None:
    failing_names = list_failing_alerts(
        run_tests(tmp_path, "bundled", change, should_run=lambda test: test.tag == tag)
    )
    assert {rule["alert"] for rule in RULES if affected(rule)} <= failing_names
