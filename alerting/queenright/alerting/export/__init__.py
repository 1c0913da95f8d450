"""Export the rules as files, an archive or Kubernetes objects, and compare them with loaded rules."""

from __future__ import annotations

from queenright.alerting.export.check import check_rules
from queenright.alerting.export.compare import Difference, RuleChange, compare
from queenright.alerting.export.extra_files import Extras
from queenright.alerting.export.links import rule_links
from queenright.alerting.export.loaded_rules import (
    LoadedRule,
    UnreadableRulesError,
    parse_rule_groups,
    parse_rules_response,
    read_rule_files,
)

__all__ = [
    "Difference",
    "Extras",
    "LoadedRule",
    "RuleChange",
    "UnreadableRulesError",
    "check_rules",
    "compare",
    "parse_rule_groups",
    "parse_rules_response",
    "read_rule_files",
    "rule_links",
]
