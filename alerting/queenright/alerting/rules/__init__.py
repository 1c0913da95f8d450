"""
Recording rules and alerts for Prometheus, generated from the detectors' settings.

The committed ``alerting/prometheus/rules/*.yml`` are these rules with the default settings.
"""

from __future__ import annotations

from queenright.alerting.rules.catalog import rule_files, rule_groups
from queenright.alerting.rules.rule import Alert, Group, Links, RecordingRule, Selectors
from queenright.alerting.rules.text import render

__all__ = ["Alert", "Group", "Links", "RecordingRule", "Selectors", "render", "rule_files", "rule_groups"]
