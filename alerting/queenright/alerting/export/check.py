"""What can be said of rules without Prometheus' own tool: names, runbooks, brackets, durations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from queenright.alerting.export.loaded_rules import LoadedRule
from queenright.alerting.files import runbook
from queenright.instrumentation import names

_TEXT: Final = re.compile(r'"(?:\\.|[^"\\])*"')
_METRIC: Final = re.compile(r"(?<![\w:])((?:[a-z_]+:)?queenright_[a-z0-9_]+(?::\w+)?)")
_PAIRS: Final = {")": "(", "]": "[", "}": "{"}


def check_rules(rules: Iterable[LoadedRule]) -> list[str]:
    """
    Return every fault, as a sentence that names its rule.

    A metric that nothing exposes or records, a runbook that is not there, brackets and quotes that do not
    close, an alert that says not what it is about, and two that would be one.
    """
    listed = list(rules)
    recorded = {rule.name for rule in listed if not rule.alert}
    found = [f"{rule.name}: {fault}" for rule in listed for fault in _faults(rule, recorded)]
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for rule in listed:
        key = (rule.name, tuple(sorted(rule.labels.items())))
        if key in seen:
            found.append(f"{rule.name}: there are two with the same labels")
        seen.add(key)
    return found


def _faults(rule: LoadedRule, recorded: set[str]) -> Iterator[str]:
    bare = _TEXT.sub('""', rule.expr)
    if not _closes(bare) or bare.replace('""', "").count('"'):
        yield f"brackets or quotes do not close in {rule.expr!r}"
    for metric in sorted(set(_METRIC.findall(bare))):
        if metric not in recorded and not _exposed(metric):
            yield f"nothing exposes or records {metric}"
    if not rule.alert:
        return
    for annotation in ("summary", "description", "runbook_url"):
        if not rule.annotations.get(annotation):
            yield f"it has no {annotation}"
    for label in ("severity", "source"):
        if not rule.labels.get(label):
            yield f"it has no label {label}"
    if runbook(rule.name) is None:
        yield f"there is no runbook {rule.name}.md"


def _closes(text: str) -> bool:
    opened: list[str] = []
    for sign in text:
        if sign in "([{":
            opened.append(sign)
        elif sign in _PAIRS and (not opened or opened.pop() != _PAIRS[sign]):
            return False
    return not opened


def _exposed(metric: str) -> bool:
    if metric in names.METRICS:
        return True
    base = re.sub(r"_(bucket|sum|count)$", "", metric)
    return base in names.METRICS and names.METRICS[base].kind == "histogram"
