"""The labels of every alert that the rules and the outbox can emit, as Alertmanager sees them."""

from __future__ import annotations

import re
from typing import Final

from queenright.alerting.alert import build_labels, reminder_labels
from queenright.alerting.rules import Alert, rule_groups
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from tests.alerting.parts import ticket

OPTIONAL: Final = frozenset({"storm", "reminder"})
"""Labels of some alerts of the outbox. If both alerts lack one, Alertmanager treats it as equal."""

_MENTIONED: Final = re.compile(r"\$labels\.(\w+)")


def rule_alerts() -> list[dict[str, str]]:
    """Return the alerts of Prometheus; labels that the expression provides get a value."""
    found = []
    for group in rule_groups(HealthSettings()):
        for rule in group.rules:
            if isinstance(rule, Alert):
                given = _MENTIONED.findall(f"{rule.summary} {rule.description} {rule.dashboard}")
                own = {"alertname": rule.name, "severity": rule.severity, "source": rule.source}
                values = {name: "researcher" if name == "agent" else name for name in given}
                found.append({**values, **rule.labels, **own, "cluster": "default"})
    return found


def outbox_alerts() -> list[dict[str, str]]:
    """Return the alerts of the outbox: every cause and severity, with and without a storm and a reminder."""
    settings, found = AlertingSettings(), []
    for kind in FindingKind:
        for severity in Severity:
            for storm in ("", "storm-1"):
                one = ticket(kind=kind, severity=severity, storm_id=storm)
                found.append(build_labels(one, settings))
                for _ in range(3):
                    found.append(reminder_labels(found[-1], one))
    return found
