"""Check rules without promtool: metric names, runbooks, brackets and required annotations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from queenright.alerting.export.loaded_rules import LoadedRule
from queenright.alerting.files import read_runbook
from queenright.instrumentation import names

_QUOTED_TEXT: Final = re.compile(r'"(?:\\.|[^"\\])*"')
_METRIC: Final = re.compile(r"(?<![\w:])((?:[a-z_]+:)?queenright_[a-z0-9_]+(?::\w+)?)")
_PAIRS: Final = {")": "(", "]": "[", "}": "{"}


def check_rules(rules: Iterable[LoadedRule]) -> list[str]:
    """
    Return the faults of the rules, each as a text that begins with the rule's name.

    Finds unknown metrics, missing runbooks, unbalanced brackets or quotes, missing annotations or labels, and
    duplicate rules.
    """
    all_rules = list(rules)
    record_names = {rule.name for rule in all_rules if not rule.is_alert}
    faults = [f"{rule.name}: {fault}" for rule in all_rules for fault in _find_faults(rule, record_names)]
    keys: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for rule in all_rules:
        key = (rule.name, tuple(sorted(rule.labels.items())))
        if key in keys:
            faults.append(f"{rule.name}: another rule has the same name and the same labels")
        keys.add(key)
    return faults


def _find_faults(rule: LoadedRule, record_names: set[str]) -> Iterator[str]:
    expr_without_texts = _QUOTED_TEXT.sub('""', rule.expr)
    if not _is_balanced(expr_without_texts) or expr_without_texts.replace('""', "").count('"'):
        yield f"unbalanced brackets or quotes in {rule.expr!r}"
    for metric in sorted(set(_METRIC.findall(expr_without_texts))):
        if metric not in record_names and not _is_exposed(metric):
            yield f"unknown metric {metric}: it is neither exposed nor recorded"
    if not rule.is_alert:
        return
    for annotation in ("summary", "description", "runbook_url"):
        if not rule.annotations.get(annotation):
            yield f"the annotation {annotation} is missing"
    for label in ("severity", "source"):
        if not rule.labels.get(label):
            yield f"the label {label} is missing"
    if read_runbook(rule.name) is None:
        yield f"the runbook {rule.name}.md is missing"


def _is_balanced(text: str) -> bool:
    stack: list[str] = []
    for character in text:
        if character in "([{":
            stack.append(character)
        elif character in _PAIRS and (not stack or stack.pop() != _PAIRS[character]):
            return False
    return not stack


def _is_exposed(metric: str) -> bool:
    if metric in names.METRICS:
        return True
    base = re.sub(r"_(bucket|sum|count)$", "", metric)
    return base in names.METRICS and names.METRICS[base].kind == "histogram"
