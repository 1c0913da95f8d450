"""Every alert is shown by promtool to do what it should; and the tests that show it are looked at in turn."""

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
    alerts,
    distinguishing_labels,
    failures,
    ident,
    rule_tests,
)
from tests.programs import VERSIONS, run

RULES = alerts()

ALWAYS = "it fires whatever happens, which is its use"
PEOPLE = "it is about people who do not answer: what it waits for is what it tells"
FLEET = "it is about the fleet or the monitor, and no worker's waiting excuses those"
SERVICE = "its series are the service's: what becomes of it without them, `absent:` shows"
WORKER = "a worker's series end by unloading or by a killed process, and these are shown"
DEAD = "a process that is dead does none of this any more; QueenrightHeartbeatMissing tells of it"
NO_FLAP = "it has no keep_firing_for"

NEEDLESS: dict[str, dict[str, str]] = {
    "boundary": {"Watchdog": ALWAYS},
    "resolves": {"Watchdog": ALWAYS},
    "waiting": {"HeartbeatMissing": "a worker that waits still has a heart"},
    "killed": {"RetryStorm": DEAD, "Loop": DEAD, "WaitingForUser": DEAD},
}
"""By tag, the alerts that need no such test, and why."""


def why_not(tag: str, rule: Rule) -> str | None:
    """Return why an alert needs no test with this tag; None if it does."""
    name, source = rule["alert"].removeprefix("Queenright"), rule["labels"]["source"]
    if tag == "keeps":
        return None if "keep_firing_for" in rule else NO_FLAP
    if tag in ("waiting", "unloaded", "killed") and source == "monitor":
        return FLEET if tag == "waiting" else SERVICE
    if tag == "absent" and source == "rules":
        return WORKER
    return NEEDLESS.get(tag, {}).get(name)


def cases_of(rule: Rule, tag: str) -> list[RuleTest]:
    """Return the tests with this tag in which the alert, in its band, is seen to be there."""
    band = distinguishing_labels(rule).items()
    return [
        test
        for test in rule_tests()
        if test.tag == tag
        and any(seen.alert == rule["alert"] and band <= seen.labels.items() for seen in test.ever)
    ]


@pytest.mark.parametrize("length", ["short", "long"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_test_passes(version: str, length: str, tmp_path: Path) -> None:
    """B78, B79: fires, boundary, not while waiting, not after unload, a killed process, resolves."""
    assert failures(tmp_path, version, wanted=lambda test: test.length == length) == ""


def test_every_band_of_every_alert_has_a_short_test() -> None:
    for rule in RULES:
        assert any(test.length == "short" for test in cases_of(rule, "fires")), ident(rule)


def test_promtool_test_with_file_names_passes_unchanged() -> None:
    """As run by hand: `promtool test rules loop.yml`."""
    [file] = [file for file in TESTS if file.stem == "loop"]
    result = run("promtool", "test", "rules", file)
    assert (result.returncode, result.stderr) == (0, "")


TAGS = ("fires", "boundary", "waiting", "unloaded", "killed", "resolves", "keeps", "absent")


@pytest.mark.parametrize("rule", RULES, ids=ident)
def test_alert_has_every_applicable_test(rule: Rule) -> None:
    """B79"""
    reasons = {tag: why_not(tag, rule) for tag in TAGS}
    missing = [tag for tag, reason in reasons.items() if reason is None and not cases_of(rule, tag)]

    assert missing == [], f"{ident(rule)} needs tests whose names begin with these tags and that see it"
    assert "" not in reasons.values()


def test_every_promtool_test_has_a_tag() -> None:
    for test in rule_tests():
        assert test.tag in TAGS, test.name
        assert test.expected, test.name
        if test.tag in ("resolves", "keeps", "unloaded", "killed"):
            assert len(test.expected) > 1, test.name


def of(tag: str) -> list[RuleTest]:
    return [test for test in rule_tests() if test.tag == tag]


def named(tests: list[RuleTest]) -> Callable[[Callable[[RuleTest], None]], Callable[[RuleTest], None]]:
    return pytest.mark.parametrize("test", tests, ids=lambda t: f"{t.file}: {t.name.partition(': ')[2]}")


def test_some_fires_test_of_each_alert_expects_all_its_labels_and_annotations() -> None:
    for rule in RULES:
        whole = [
            seen
            for test in cases_of(rule, "fires")
            for seen in test.ever
            if seen.alert == rule["alert"]
            and seen.annotations
            and rule["labels"].items() <= seen.labels.items()
        ]
        assert whole, ident(rule)
        assert all(set(seen.annotations or ()) == set(rule["annotations"]) for seen in whole)


@pytest.mark.parametrize("rule", RULES, ids=ident)
def test_boundary_is_tested_below_above_and_before_its_time(rule: Rule) -> None:
    if why_not("boundary", rule):
        return
    band = distinguishing_labels(rule).items()
    tests = [test for test in of("boundary") + of("fires") if rule["alert"] in test.alerts]
    looks = [
        (test, [seen for seen in found if band <= seen.labels.items()])
        for test in tests
        for _, found in test.expected
    ]
    states = {seen.labels["alertstate"] for _, found in looks for seen in found}
    assert states == {"pending", "firing"}
    assert any(not found or below(test, found) for test, found in looks if test.tag == "boundary")


def below(test: RuleTest, found: list[AlertCheck]) -> set[str]:
    """Return the agents, or the windows of a budget, that a test has series of and does not see."""
    there = {value for series in test.series for value in re.findall(r'(?:agent|window)="([\w-]+)"', series)}
    return there - {value for seen in found for value in seen.labels.values()} if there else set()


@named(of("waiting"))
def test_waiting_workers_do_not_fire_while_others_do(test: RuleTest) -> None:
    who = r'queenright_worker_waiting\{agent="([\w-]+)".*'
    waiting = {
        found[1]: values
        for series, values in test.series.items()
        if (found := re.fullmatch(who, series)) and found[1] != "control"
    }
    assert waiting
    for _, seen in test.expected[:1]:
        assert seen, "without one that fires beside it, the test would pass if nothing ever fired"
        assert not {one.labels["agent"] for one in seen} & set(waiting)


@named(of("unloaded"))
def test_unloaded_worker_is_gone_while_its_target_is_up(test: RuleTest) -> None:
    gone = {
        found[1]
        for series, values in test.series.items()
        if values.endswith("stale") and (found := re.search(r'agent="([\w-]+)"', series))
    }
    targets = [values for series, values in test.series.items() if series.startswith("up{")]
    assert gone
    assert targets
    # A process may end after its worker has: what was removed while the target was up stays removed.
    assert all(re.fullmatch(r"1x\d+( 0x\d+)?", values) for values in targets)
    assert any(seen.fires for seen in test.ever)
    assert not {seen.labels["agent"] for seen in test.expected[-1][1]} & gone


@named(of("killed"))
def test_killed_worker_fires_after_its_series_ended(test: RuleTest) -> None:
    [target] = {values for series, values in test.series.items() if series.startswith("up{")}
    down = re.fullmatch(r"1x(\d+) 0x\d+", target)
    assert down
    assert all(values.endswith("stale") for series, values in test.series.items() if "agent=" in series)
    died = (int(down[1]) + 1) * 60
    assert any(seen.fires for at, found in test.expected if at > died for seen in found)


@named(of("resolves") + of("keeps"))
def test_resolved_alert_fired_before(test: RuleTest) -> None:
    last = {str(one.labels) for one in test.expected[-1][1] if one.fires}
    ever = {str(one.labels) for one in test.ever if one.fires}
    assert ever - last


# -- do the tests notice? -------------------------------------------------------------------------


def failing(text: str) -> set[str]:
    """Return the alerts that promtool's complaints are about."""
    return set(re.findall(r'alertname(?:=\\?"|: )(\w+)', text))


def without_wait(rule: Rule) -> Rule:
    return {key: value for key, value in rule.items() if key != "for"}


def without_keeping(rule: Rule) -> Rule:
    return {key: value for key, value in rule.items() if key != "keep_firing_for"}


def without_waiting(rule: Rule) -> Rule:
    if "alert" not in rule:
        return rule
    excuse = r"unless on \(agent, job, instance\) agent_instance:queenright_worker_waiting:last == 1"
    return rule | {"expr": re.sub(excuse, "", rule["expr"])}


@pytest.mark.parametrize(
    ("change", "tag", "whom"),
    [
        (without_wait, "boundary", lambda rule: "for" in rule),
        (without_keeping, "keeps", lambda rule: "keep_firing_for" in rule),
        (without_waiting, "waiting", lambda rule: "worker_waiting:last == 1" in rule["expr"]),
    ],
    ids=["without for", "without keep_firing_for", "without the excuse of waiting"],
)
def test_tests_notice_an_alert(
    change: Callable[[Rule], Rule], tag: str, whom: Callable[[Rule], bool], tmp_path: Path
) -> None:
    noticed = failing(failures(tmp_path, "bundled", change, wanted=lambda test: test.tag == tag))
    assert {rule["alert"] for rule in RULES if whom(rule)} <= noticed
