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
    alert_id,
    all_alerts,
    distinguishing_labels,
    rule_tests,
    run_tests,
)
from tests.programs import VERSIONS, run

RULES = all_alerts()

ALWAYS = "it is meant to fire always"
PEOPLE = "it is about people who do not answer, so waiting is its condition"
FLEET = "it is about the fleet or the monitor, which a waiting worker does not excuse"
SERVICE = "its series come from the service; `absent:` shows what happens without them"
WORKER = "a worker's series end by unloading or with a killed process, which other tests show"
DEAD = "a dead process does none of this; QueenrightHeartbeatMissing covers it"
NO_FLAP = "it has no keep_firing_for"

NOT_APPLICABLE: dict[str, dict[str, str]] = {
    "boundary": {"Watchdog": ALWAYS},
    "resolves": {"Watchdog": ALWAYS},
    "waiting": {"HeartbeatMissing": "a waiting worker still sends heartbeats"},
    "killed": {"RetryStorm": DEAD, "Loop": DEAD, "WaitingForUser": DEAD},
}
"""By tag, the alerts that need no such test, and the reason."""


def reason_without_test(tag: str, rule: Rule) -> str | None:
    """Return why an alert needs no test with this tag; None if it does."""
    name, source = rule["alert"].removeprefix("Queenright"), rule["labels"]["source"]
    if tag == "keeps":
        return None if "keep_firing_for" in rule else NO_FLAP
    if tag in ("waiting", "unloaded", "killed") and source == "monitor":
        return FLEET if tag == "waiting" else SERVICE
    if tag == "absent" and source == "rules":
        return WORKER
    return NOT_APPLICABLE.get(tag, {}).get(name)


def find_tests(rule: Rule, tag: str) -> list[RuleTest]:
    """Return the tests with this tag in which the alert, in its band, appears."""
    band = distinguishing_labels(rule).items()
    return [
        test
        for test in rule_tests()
        if test.tag == tag
        and any(seen.alert == rule["alert"] and band <= seen.labels.items() for seen in test.all_expected)
    ]


@pytest.mark.parametrize("length", ["short", "long"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_test_passes(version: str, length: str, tmp_path: Path) -> None:
    """B78, B79: fires, boundary, not while waiting, not after unload, a killed process, resolves."""
    assert run_tests(tmp_path, version, wanted=lambda test: test.length == length) == ""


def test_every_band_of_every_alert_has_a_short_test() -> None:
    for rule in RULES:
        assert any(test.length == "short" for test in find_tests(rule, "fires")), alert_id(rule)


def test_promtool_test_with_file_names_passes_unchanged() -> None:
    """As run by hand: `promtool test rules loop.yml`."""
    [file] = [file for file in TESTS if file.stem == "loop"]
    result = run("promtool", "test", "rules", file)
    assert (result.returncode, result.stderr) == (0, "")


TAGS = ("fires", "boundary", "waiting", "unloaded", "killed", "resolves", "keeps", "absent")


@pytest.mark.parametrize("rule", RULES, ids=alert_id)
def test_alert_has_every_applicable_test(rule: Rule) -> None:
    """B79: each tag is tested or has a reason."""
    reasons = {tag: reason_without_test(tag, rule) for tag in TAGS}
    missing = [tag for tag, reason in reasons.items() if reason is None and not find_tests(rule, tag)]

    assert missing == [], (
        f"{alert_id(rule)} needs tests whose names begin with these tags and in which it appears"
    )
    assert "" not in reasons.values()


def test_every_promtool_test_has_a_tag() -> None:
    for test in rule_tests():
        assert test.tag in TAGS, test.name
        assert test.expected, test.name
        if test.tag in ("resolves", "keeps", "unloaded", "killed"):
            assert len(test.expected) > 1, test.name


def select_tests(tag: str) -> list[RuleTest]:
    return [test for test in rule_tests() if test.tag == tag]


def list_ids(tests: list[RuleTest]) -> Callable[[Callable[[RuleTest], None]], Callable[[RuleTest], None]]:
    return pytest.mark.parametrize("test", tests, ids=lambda t: f"{t.file}: {t.name.partition(': ')[2]}")


def test_some_fires_test_of_each_alert_expects_all_its_labels_and_annotations() -> None:
    for rule in RULES:
        whole = [
            seen
            for test in find_tests(rule, "fires")
            for seen in test.all_expected
            if seen.alert == rule["alert"]
            and seen.annotations
            and rule["labels"].items() <= seen.labels.items()
        ]
        assert whole, alert_id(rule)
        assert all(set(seen.annotations or ()) == set(rule["annotations"]) for seen in whole)


@pytest.mark.parametrize("rule", RULES, ids=alert_id)
def test_boundary_is_tested_below_above_and_before_its_time(rule: Rule) -> None:
    if reason_without_test("boundary", rule):
        return
    band = distinguishing_labels(rule).items()
    tests = [
        test for test in select_tests("boundary") + select_tests("fires") if rule["alert"] in test.alerts
    ]
    looks = [
        (test, [seen for seen in found if band <= seen.labels.items()])
        for test in tests
        for _, found in test.expected
    ]
    states = {seen.labels["alertstate"] for _, found in looks for seen in found}
    assert states == {"pending", "firing"}
    assert any(not found or unseen_values(test, found) for test, found in looks if test.tag == "boundary")


def unseen_values(test: RuleTest, found: list[AlertCheck]) -> set[str]:
    """
    Return the agents, or the windows of a budget, whose series the test has but whose alert it does not
    expect.
    """
    there = {value for series in test.series for value in re.findall(r'(?:agent|window)="([\w-]+)"', series)}
    return there - {value for seen in found for value in seen.labels.values()} if there else set()


@list_ids(select_tests("waiting"))
def test_waiting_workers_do_not_fire_while_others_do(test: RuleTest) -> None:
    waiting_workers = r'queenright_worker_waiting\{agent="([\w-]+)".*'
    waiting = {
        found[1]: values
        for series, values in test.series.items()
        if (found := re.fullmatch(waiting_workers, series)) and found[1] != "control"
    }
    assert waiting
    for _, seen in test.expected[:1]:
        assert seen, "without another that fires, the test would pass if nothing ever fired"
        assert not {one.labels["agent"] for one in seen} & set(waiting)


@list_ids(select_tests("unloaded"))
def test_unloaded_worker_is_gone_while_its_target_is_up(test: RuleTest) -> None:
    ended = {
        found[1]
        for series, values in test.series.items()
        if values.endswith("stale") and (found := re.search(r'agent="([\w-]+)"', series))
    }
    targets = [values for series, values in test.series.items() if series.startswith("up{")]
    assert ended
    assert targets
    # A process may end after its worker: series removed while the target was up stay removed.
    assert all(re.fullmatch(r"1x\d+( 0x\d+)?", values) for values in targets)
    assert any(seen.fires for seen in test.all_expected)
    assert not {seen.labels["agent"] for seen in test.expected[-1][1]} & ended


@list_ids(select_tests("killed"))
def test_killed_worker_fires_after_its_series_ended(test: RuleTest) -> None:
    [target] = {values for series, values in test.series.items() if series.startswith("up{")}
    down = re.fullmatch(r"1x(\d+) 0x\d+", target)
    assert down
    assert all(values.endswith("stale") for series, values in test.series.items() if "agent=" in series)
    died = (int(down[1]) + 1) * 60
    assert any(seen.fires for at, found in test.expected if at > died for seen in found)


@list_ids(select_tests("resolves") + select_tests("keeps"))
def test_resolved_alert_fired_before(test: RuleTest) -> None:
    last = {str(one.labels) for one in test.expected[-1][1] if one.fires}
    expected = {str(one.labels) for one in test.all_expected if one.fires}
    assert expected - last


# -- sensitivity of the tests ---------------------------------------------------------------------


def failing_alerts(text: str) -> set[str]:
    """Return the alerts in promtool's error output."""
    return set(re.findall(r'alertname(?:=\\?"|: )(\w+)', text))


def remove_for(rule: Rule) -> Rule:
    return {key: value for key, value in rule.items() if key != "for"}


def remove_keep_firing(rule: Rule) -> Rule:
    return {key: value for key, value in rule.items() if key != "keep_firing_for"}


def remove_waiting_exclusion(rule: Rule) -> Rule:
    if "alert" not in rule:
        return rule
    excuse = r"unless on \(agent, job, instance\) agent_instance:queenright_worker_waiting:last == 1"
    return rule | {"expr": re.sub(excuse, "", rule["expr"])}


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
    noticed = failing_alerts(run_tests(tmp_path, "bundled", change, wanted=lambda test: test.tag == tag))
    assert {rule["alert"] for rule in RULES if affected(rule)} <= noticed
