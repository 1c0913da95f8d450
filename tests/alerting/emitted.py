"""The labels of every alert that the rules and the outbox can emit, as Alertmanager sees them."""

from __future__ import annotations

import re
from typing import Final

from queenright.alerting.alert import build_labels, reminder_labels
from queenright.alerting.rules import Alert, rule_groups
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from tests.alerting.parts import make_ticket

OPTIONAL: Final = frozenset({"storm", "reminder"})
"""Labels of some alerts of the outbox. If both alerts lack one, Alertmanager treats it as equal."""

_MENTIONED_LABEL: Final = re.compile(r"\$labels\.(\w+)")


def list_rule_alerts() -> list[dict[str, str]]:
    """Return the alerts of Prometheus; labels that the expression provides get a value."""
    alerts = []
    for group in rule_groups(HealthSettings()):
        for rule in group.rules:
            if isinstance(rule, Alert):
                label_names = _MENTIONED_LABEL.findall(f"{rule.summary} {rule.description} {rule.dashboard}")
                identity_labels = {"alertname": rule.name, "severity": rule.severity, "source": rule.source}
                values = {name: "researcher" if name == "agent" else name for name in label_names}
                alerts.append({**values, **rule.labels, **identity_labels, "cluster": "default"})
    return alerts


def list_outbox_alerts() -> list[dict[str, str]]:
    """Return the alerts of the outbox: every cause and severity, with and without a storm and a reminder."""
    settings, alerts = AlertingSettings(), []
    for kind in FindingKind:
        for severity in Severity:
            for storm in ("", "storm-1"):
                example_ticket = make_ticket(kind=kind, severity=severity, storm_id=storm)
                alerts.append(build_labels(example_ticket, settings))
                for _ in range(3):
                    alerts.append(reminder_labels(alerts[-1], example_ticket))
    return alerts
