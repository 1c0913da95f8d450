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
from tests.alerting.emitted import OPTIONAL, list_outbox_alerts, list_rule_alerts
from tests.alerting.real import make_minimal_alert, make_queen_alert, real_alertmanager, run_receivers
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
        name, operator, pattern = match.groups()
        value = labels.get(name, "")
        is_equal = re.fullmatch(pattern, value) is not None if "~" in operator else value == pattern
        if is_equal == operator.startswith("!"):
            return False
    return True


def is_inhibited_by(rule: dict[str, list[str]], source: Labels, target: Labels) -> bool:
    return (
        is_match(rule["source_matchers"], source)
        and is_match(rule["target_matchers"], target)
        and all(source.get(name, "") == target.get(name, "") for name in rule["equal"])
    )


@dataclass(frozen=True)
class InhibitionCase:
    """An alert, one that it inhibits, and similar ones that it does not."""

    name: str
    source: Labels
    target: Labels
    near_misses: tuple[Labels, ...]


def make_ticket_labels(severity: str, agent: str = "researcher", **labels: str) -> dict[str, str]:
    return make_queen_alert(severity, agent, **labels).labels


def make_rule_labels(name: str, severity: str, source: str = "monitor", **labels: str) -> dict[str, str]:
    return make_minimal_alert(
        alertname=f"Queenright{name}", severity=severity, source=source, **labels
    ).labels


def make_reminder_pair(before: str, after: str) -> InhibitionCase:
    """Return a reminder and the one that it replaces; ``before`` is empty for the first message."""
    turn = {"reminder": before} if before else {}
    return InhibitionCase(
        f"reminder-{before or 'none'}-{after}",
        make_ticket_labels("critical", reminder=after),
        make_ticket_labels("critical", **turn),
        (
            make_ticket_labels("critical", "other", **turn),
            make_ticket_labels("critical", cause="stall", **turn),
            make_ticket_labels("critical", storm="storm-1", **turn),
            make_ticket_labels("critical", ticket_id="another", **turn),
        ),
    )


PAIRS: Final = [
    InhibitionCase(
        "critical-ticket",
        make_ticket_labels("critical"),
        make_ticket_labels("warning"),
        (
            make_ticket_labels("warning", "other"),
            make_ticket_labels("warning", cause="stall"),
            make_ticket_labels("warning", ticket_id="another"),
        ),
    ),
    InhibitionCase(
        "warning-ticket",
        make_ticket_labels("warning"),
        make_ticket_labels("info"),
        (
            make_ticket_labels("info", "other"),
            make_ticket_labels("critical", "third"),
            make_ticket_labels("info", ticket_id="another"),
        ),
    ),
    *(
        make_reminder_pair(*turn)
        for turn in (("", "1"), ("3", "1"), ("1", "2"), ("", "2"), ("2", "3"), ("", "3"))
    ),
    InhibitionCase(
        "ticket-symptom",
        make_ticket_labels("info"),
        make_rule_labels("Loop", "critical", "rules", agent="researcher"),
        (
            make_rule_labels("Loop", "critical", "rules", agent="other"),
            make_rule_labels("JudgeSilent", "critical"),
        ),
    ),
    InhibitionCase(
        "critical-symptom",
        make_rule_labels("RetryStorm", "critical", "rules", agent="researcher"),
        make_rule_labels("RetryStorm", "warning", "rules", agent="researcher"),
        (
            make_rule_labels("RetryStorm", "warning", "rules", agent="other"),
            make_rule_labels("ErrorRate", "warning", "rules", agent="researcher"),
        ),
    ),
    InhibitionCase(
        "fleet-ticket",
        make_rule_labels("FleetDegraded", "critical"),
        make_ticket_labels("warning"),
        (make_ticket_labels("critical", "other"),),
    ),
    InhibitionCase(
        "fleet-symptom",
        make_rule_labels("FleetDegraded", "critical"),
        make_rule_labels("WorkerStalled", "critical", "rules", agent="researcher"),
        (make_rule_labels("JudgeSilent", "critical"), make_ticket_labels("critical", "other")),
    ),
    *(
        InhibitionCase(
            f"{name}-symptom",  # B119
            make_rule_labels(name, "critical"),
            make_rule_labels("HeartbeatMissing", "critical", "rules", agent="researcher"),
            (
                make_rule_labels("JudgeSilent", "critical"),
                make_rule_labels("ClusterProcessCutOff", "warning"),
                make_ticket_labels("critical", "other"),
            ),
        )
        for name in ("NotListening", "ClusterStreamDown")
    ),
    *(
        InhibitionCase(
            f"database-{name}",  # B119
            make_rule_labels("NotListening", "critical", job="queenright"),
            make_rule_labels(name, "critical", job="queenright"),
            (
                make_rule_labels("MonitorBlind", "critical", job="queenright"),
                make_rule_labels("Watchdog", "none"),
            ),
        )
        for name in ("OutboxStuck", "ClusterBacklogGrows", "ClusterWithoutOwner")
    ),
    *(
        InhibitionCase(
            f"{name}-burn",
            make_rule_labels(f"{name}Burn", "critical", window="1h"),
            make_rule_labels(f"{name}Burn", "warning", window="3d"),
            (
                make_rule_labels(f"{other}Burn", "warning", window="3d"),
                make_rule_labels("JudgeFailing", "warning"),
            ),
        )
        for name, other in (("BadSteps", "SlowInterventions"), ("SlowInterventions", "BadSteps"))
    ),
    InhibitionCase(
        "down-monitor",
        make_rule_labels("MonitorDown", "critical", job="queenright"),
        make_rule_labels("JudgeSilent", "critical"),
        (make_rule_labels("Watchdog", "none"), make_ticket_labels("critical")),
    ),
]


def move_to_cluster(pair: InhibitionCase) -> tuple[Labels, Labels, list[Labels]]:
    """Return the pair in its own cluster, with a near miss from another cluster added."""
    own_cluster, other_cluster = {"cluster": pair.name}, {"cluster": f"{pair.name}-elsewhere"}
    near_misses = [{**labels, **own_cluster} for labels in pair.near_misses]
    return (
        {**pair.source, **own_cluster},
        {**pair.target, **own_cluster},
        [*near_misses, {**pair.target, **other_cluster}],
    )


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_each_inhibition_matches_its_pairs_and_no_near_miss(pair: InhibitionCase) -> None:
    source, target, near_misses = move_to_cluster(pair)
    assert [is_inhibited_by(rule, source, target) for rule in RULES].count(True) == 1
    assert not any(is_inhibited_by(rule, source, other) for rule in RULES for other in near_misses)


def test_every_rule_has_its_pair() -> None:
    match_flags = [any(is_inhibited_by(rule, pair.source, pair.target) for pair in PAIRS) for rule in RULES]
    assert match_flags == [True] * len(RULES)


@pytest.mark.parametrize(
    "rule", RULES, ids=lambda rule: str(rule["source_matchers"] + rule["target_matchers"])
)
def test_inhibition_source_and_target_are_emitted_with_all_equal_labels(
    rule: dict[str, Any],
) -> None:
    """A rule on a label that no alert has inhibits nothing or everything."""
    alerts = [*list_rule_alerts(), *list_outbox_alerts()]
    sources = [labels for labels in alerts if is_match(rule["source_matchers"], labels)]
    targets = [labels for labels in alerts if is_match(rule["target_matchers"], labels)]
    required_labels = set(rule["equal"]) - OPTIONAL

    assert sources
    assert targets
    assert all(required_labels <= labels.keys() for labels in [*sources, *targets])
    assert any(is_inhibited_by(rule, source, target) for source in sources for target in targets)


def test_emitted_alerts_do_not_inhibit_each_other_permanently() -> None:
    """Two alerts that inhibit each other would both be silent."""
    alerts = [
        dict(pairs)
        for pairs in {
            tuple(sorted(labels.items())) for labels in [*list_rule_alerts(), *list_outbox_alerts()]
        }
    ]
    ours_alone = [
        labels for labels in alerts if labels.get("cause", "stall") in ("stall", "provider_failure")
    ]
    edges = [
        (alert, other)
        for alert in ours_alone
        for other in ours_alone
        if alert != other and any(is_inhibited_by(rule, alert, other) for rule in RULES)
    ]
    assert edges
    # The three reminders take turns: at most two for one ticket exist at a time.
    mutual_pairs = [
        (first, second)
        for first, second in edges
        if (second, first) in edges and "reminder" not in first and "reminder" not in second
    ]
    assert not mutual_pairs


@pytest.mark.parametrize("version", VERSIONS)
async def test_real_alertmanager_inhibits_each_target_and_no_near_miss(tmp_path: Path, version: str) -> None:
    client = AlertmanagerClient()
    sets = [move_to_cluster(pair) for pair in PAIRS]
    async with run_receivers() as receivers, real_alertmanager(tmp_path, receivers, version) as alertmanager:
        alerts = [
            make_minimal_alert(**labels)
            for source, target, near_misses in sets
            for labels in (source, target, *near_misses)
        ]
        await client.post_alerts(alertmanager.address, alerts)
        # Alertmanager accepts an alert first, and computes inhibitions a moment later.
        rows: list[dict[str, Any]] = []

        async def read_inhibited() -> dict[frozenset[tuple[str, str]], list[str]]:
            rows[:] = await client.alerts(alertmanager.address)
            return {
                frozenset(row["labels"].items()): row["status"]["inhibitedBy"]
                for row in rows
                if row["status"]["inhibitedBy"]
            }

        inhibited_names = await read_inhibited()
        for _ in range(600):
            if len(inhibited_names) >= len(sets):
                break
            await asyncio.sleep(0.05)
            inhibited_names = await read_inhibited()
        await client.aclose()
    names = {frozenset(row["labels"].items()): row["fingerprint"] for row in rows}

    expected = {frozenset(target.items()): [names[frozenset(source.items())]] for source, target, _ in sets}
    assert inhibited_names == expected
    assert len(names) == len({tuple(sorted(row.labels.items())) for row in alerts})
