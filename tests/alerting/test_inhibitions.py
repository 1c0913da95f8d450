"""Each inhibition rule mutes its target alerts and no others, in the real Alertmanager."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.files import alertmanager_folder
from tests.alerting.emitted import OPTIONAL, outbox_alerts, rule_alerts
from tests.alerting.real import minimal_alert, queen_alert, real_alertmanager, run_receivers
from tests.programs import VERSIONS

Labels = Mapping[str, str]

_MATCHER: Final = re.compile(r'(\w+)(=~|!~|!=|=)"(.*)"')
RULES: Final[list[dict[str, list[str]]]] = yaml.safe_load(
    (alertmanager_folder() / "alertmanager.yml").read_text()
)["inhibit_rules"]


def is_match(matchers: list[str], labels: Labels) -> bool:
    """
    Return whether labels match, as in Alertmanager: a missing label is empty, patterns match the whole value.
    """
    for matcher in matchers:
        match = _MATCHER.fullmatch(matcher)
        assert match is not None, matcher
        name, operator, wanted = match.groups()
        value = labels.get(name, "")
        same = re.fullmatch(wanted, value) is not None if "~" in operator else value == wanted
        if same == operator.startswith("!"):
            return False
    return True


def is_inhibited_by(rule: dict[str, list[str]], source: Labels, target: Labels) -> bool:
    return (
        is_match(rule["source_matchers"], source)
        and is_match(rule["target_matchers"], target)
        and all(source.get(name, "") == target.get(name, "") for name in rule["equal"])
    )


@dataclass(frozen=True)
class Pair:
    """An alert, one that it inhibits, and similar ones that it does not."""

    name: str
    source: Labels
    target: Labels
    near: tuple[Labels, ...]


def ticket_alert(severity: str, agent: str = "researcher", **labels: str) -> dict[str, str]:
    return queen_alert(severity, agent, **labels).labels


def rule_alert(name: str, severity: str, source: str = "monitor", **labels: str) -> dict[str, str]:
    return minimal_alert(alertname=f"Queenright{name}", severity=severity, source=source, **labels).labels


def _reminder(before: str, after: str) -> Pair:
    """Return a reminder and the one that it replaces; ``before`` is empty for the first message."""
    turn = {"reminder": before} if before else {}
    return Pair(
        f"reminder-{before or 'none'}-{after}",
        ticket_alert("critical", reminder=after),
        ticket_alert("critical", **turn),
        (
            ticket_alert("critical", "other", **turn),
            ticket_alert("critical", cause="stall", **turn),
            ticket_alert("critical", storm="storm-1", **turn),
            ticket_alert("critical", ticket_id="another", **turn),
        ),
    )


PAIRS: Final = [
    Pair(
        "critical-ticket",
        ticket_alert("critical"),
        ticket_alert("warning"),
        (
            ticket_alert("warning", "other"),
            ticket_alert("warning", cause="stall"),
            ticket_alert("warning", ticket_id="another"),
        ),
    ),
    Pair(
        "warning-ticket",
        ticket_alert("warning"),
        ticket_alert("info"),
        (
            ticket_alert("info", "other"),
            ticket_alert("critical", "third"),
            ticket_alert("info", ticket_id="another"),
        ),
    ),
    *(_reminder(*turn) for turn in (("", "1"), ("3", "1"), ("1", "2"), ("", "2"), ("2", "3"), ("", "3"))),
    Pair(
        "ticket-symptom",
        ticket_alert("info"),
        rule_alert("Loop", "critical", "rules", agent="researcher"),
        (rule_alert("Loop", "critical", "rules", agent="other"), rule_alert("JudgeSilent", "critical")),
    ),
    Pair(
        "critical-symptom",
        rule_alert("RetryStorm", "critical", "rules", agent="researcher"),
        rule_alert("RetryStorm", "warning", "rules", agent="researcher"),
        (
            rule_alert("RetryStorm", "warning", "rules", agent="other"),
            rule_alert("ErrorRate", "warning", "rules", agent="researcher"),
        ),
    ),
    Pair(
        "fleet-ticket",
        rule_alert("FleetDegraded", "critical"),
        ticket_alert("warning"),
        (ticket_alert("critical", "other"),),
    ),
    Pair(
        "fleet-symptom",
        rule_alert("FleetDegraded", "critical"),
        rule_alert("WorkerStalled", "critical", "rules", agent="researcher"),
        (rule_alert("JudgeSilent", "critical"), ticket_alert("critical", "other")),
    ),
    *(
        Pair(
            f"{name}-symptom",  # B119
            rule_alert(name, "critical"),
            rule_alert("HeartbeatMissing", "critical", "rules", agent="researcher"),
            (
                rule_alert("JudgeSilent", "critical"),
                rule_alert("ClusterProcessCutOff", "warning"),
                ticket_alert("critical", "other"),
            ),
        )
        for name in ("NotListening", "ClusterStreamDown")
    ),
    *(
        Pair(
            f"database-{name}",  # B119
            rule_alert("NotListening", "critical", job="queenright"),
            rule_alert(name, "critical", job="queenright"),
            (
                rule_alert("MonitorBlind", "critical", job="queenright"),
                rule_alert("Watchdog", "none"),
            ),
        )
        for name in ("OutboxStuck", "ClusterBacklogGrows", "ClusterWithoutOwner")
    ),
    *(
        Pair(
            f"{name}-burn",
            rule_alert(f"{name}Burn", "critical", window="1h"),
            rule_alert(f"{name}Burn", "warning", window="3d"),
            (rule_alert(f"{other}Burn", "warning", window="3d"), rule_alert("JudgeFailing", "warning")),
        )
        for name, other in (("BadSteps", "SlowInterventions"), ("SlowInterventions", "BadSteps"))
    ),
    Pair(
        "down-monitor",
        rule_alert("MonitorDown", "critical", job="queenright"),
        rule_alert("JudgeSilent", "critical"),
        (rule_alert("Watchdog", "none"), ticket_alert("critical")),
    ),
]


def move_to_cluster(pair: Pair) -> tuple[Labels, Labels, list[Labels]]:
    """Return the pair in its own cluster, with a near miss from another cluster added."""
    own, other_cluster = {"cluster": pair.name}, {"cluster": f"{pair.name}-elsewhere"}
    near = [{**one, **own} for one in pair.near]
    return {**pair.source, **own}, {**pair.target, **own}, [*near, {**pair.target, **other_cluster}]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_each_inhibition_matches_its_pairs_and_no_near_miss(pair: Pair) -> None:
    source, target, near = move_to_cluster(pair)
    assert [is_inhibited_by(rule, source, target) for rule in RULES].count(True) == 1
    assert not any(is_inhibited_by(rule, source, other) for rule in RULES for other in near)


def test_every_rule_has_its_pair() -> None:
    matched = [any(is_inhibited_by(rule, pair.source, pair.target) for pair in PAIRS) for rule in RULES]
    assert matched == [True] * len(RULES)


@pytest.mark.parametrize(
    "rule", RULES, ids=lambda rule: str(rule["source_matchers"] + rule["target_matchers"])
)
def test_inhibition_source_and_target_are_emitted_with_all_equal_labels(
    rule: dict[str, Any],
) -> None:
    """A rule on a label that no alert has inhibits nothing or everything."""
    emitted = [*rule_alerts(), *outbox_alerts()]
    sources = [labels for labels in emitted if is_match(rule["source_matchers"], labels)]
    targets = [labels for labels in emitted if is_match(rule["target_matchers"], labels)]
    needed = set(rule["equal"]) - OPTIONAL

    assert sources
    assert targets
    assert all(needed <= labels.keys() for labels in [*sources, *targets])
    assert any(is_inhibited_by(rule, source, target) for source in sources for target in targets)


def test_emitted_alerts_do_not_inhibit_each_other_permanently() -> None:
    """Two alerts that inhibit each other would both be silent."""
    emitted = [
        dict(pairs)
        for pairs in {tuple(sorted(labels.items())) for labels in [*rule_alerts(), *outbox_alerts()]}
    ]
    ours_alone = [
        labels for labels in emitted if labels.get("cause", "stall") in ("stall", "provider_failure")
    ]
    edges = [
        (one, other)
        for one in ours_alone
        for other in ours_alone
        if one != other and any(is_inhibited_by(rule, one, other) for rule in RULES)
    ]
    assert edges
    # The three reminders take turns: at most two for one ticket exist at a time.
    both = [(a, b) for a, b in edges if (b, a) in edges and "reminder" not in a and "reminder" not in b]
    assert not both


@pytest.mark.parametrize("version", VERSIONS)
async def test_real_alertmanager_inhibits_each_target_and_no_near_miss(tmp_path: Path, version: str) -> None:
    client = AlertmanagerClient()
    sets = [move_to_cluster(pair) for pair in PAIRS]
    async with run_receivers() as everybody, real_alertmanager(tmp_path, everybody, version) as alertmanager:
        posted = [
            minimal_alert(**labels) for source, target, near in sets for labels in (source, target, *near)
        ]
        await client.post_alerts(alertmanager.address, posted)
        # Alertmanager accepts an alert first, and computes inhibitions a moment later.
        rows: list[dict[str, Any]] = []

        async def read_inhibited() -> dict[frozenset[tuple[str, str]], list[str]]:
            rows[:] = await client.alerts(alertmanager.address)
            return {
                frozenset(one["labels"].items()): one["status"]["inhibitedBy"]
                for one in rows
                if one["status"]["inhibitedBy"]
            }

        by = await read_inhibited()
        for _ in range(600):
            if len(by) >= len(sets):
                break
            await asyncio.sleep(0.05)
            by = await read_inhibited()
        await client.aclose()
    names = {frozenset(one["labels"].items()): one["fingerprint"] for one in rows}

    expected = {frozenset(target.items()): [names[frozenset(source.items())]] for source, target, _ in sets}
    assert by == expected
    assert len(names) == len({tuple(sorted(one.labels.items())) for one in posted})
