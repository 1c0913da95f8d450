"""Read rules from rule files, PrometheusRule objects or Prometheus' API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from queenright.alerting.rules import Group
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.names import ALERT_PREFIX

_GROUP_PREFIX: Final = "queenright-"
_DURATION: Final = re.compile(r"(\d+)(ms|y|w|d|h|m|s)")
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}


class UnreadableRulesError(QueenrightError):
    """
    Raised if a file or response contains no readable rules. The message names the source and the reason.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRule:
    """A rule from any source. Durations are in seconds. ``group`` is the name of its group."""

    group: str
    name: str
    is_alert: bool
    expr: str
    for_: float = 0
    keep_firing_for: float = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    file: str = field(default="", compare=False)
    """The file that the rule was read from; "" if unknown."""

    @property
    def is_ours(self) -> bool:
        """Whether it is a rule of Queenright, judging by the name of its group or alert."""
        return self.group.startswith(_GROUP_PREFIX) or (self.is_alert and self.name.startswith(ALERT_PREFIX))


def parse_duration(duration: str) -> float:
    """Return the seconds of a Prometheus duration, such as ``1m30s``; 0 for an empty text."""
    return float(sum(int(count) * _UNIT_SECONDS[unit] for count, unit in _DURATION.findall(duration)))


def parse_rule_groups(groups: Iterable[Group]) -> list[LoadedRule]:
    """Return the rules of generated groups."""
    return list(_parse_groups({"groups": [group.to_dict() for group in groups]}))


def read_rule_files(paths: Sequence[Path]) -> list[LoadedRule]:
    """
    Return the rules in the given files, and in every ``*.yml`` and ``*.yaml`` of the given folders.

    A file is a Prometheus rule file, or contains PrometheusRule objects. Other Kubernetes objects are
    ignored.

    Raises:
        UnreadableRulesError: A file cannot be read or is neither of these, or a folder contains no rules.
    """
    return [rule for path in paths for rule in (_read_folder(path) if path.is_dir() else _read_file(path))]


def parse_rules_response(response: Any) -> list[LoadedRule]:
    """
    Return the rules that Prometheus has loaded.

    Args:
        response: The parsed JSON of ``/api/v1/rules``.

    Raises:
        UnreadableRulesError: The response has no groups of rules.
    """
    try:
        return [
            LoadedRule(
                group=group["name"],
                name=rule["name"],
                is_alert=rule["type"] == "alerting",
                expr=rule["query"],
                for_=float(rule.get("duration", 0)),
                keep_firing_for=float(rule.get("keepFiringFor", 0)),
                labels=rule.get("labels") or {},
                annotations=rule.get("annotations") or {},
                file=str(group.get("file") or ""),
            )
            for group in response["data"]["groups"]
            for rule in group["rules"]
        ]
    except (KeyError, TypeError, ValueError):
        raise UnreadableRulesError(
            "the server has no groups of rules at /api/v1/rules; pass Prometheus' base URL"
        ) from None


def _read_folder(folder: Path) -> list[LoadedRule]:
    """Return the rules of all files in a folder. Files without rules are ignored."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in (".yml", ".yaml"))
    except OSError as error:
        raise UnreadableRulesError(
            f"cannot read {folder}: {error.strerror}; pass a rule file or a folder of rule files"
        ) from None
    rules = [
        replace(rule, file=str(file))
        for file in files
        for document in _read_documents(file)
        for rule in _parse_document(document) or ()
    ]
    if not rules:
        raise UnreadableRulesError(
            f"no file in {folder} contains rules; pass a rule file or a folder of rule files"
        )
    return rules


def _read_file(path: Path) -> list[LoadedRule]:
    result: list[LoadedRule] = []
    for document in _read_documents(path):
        rules = _parse_document(document)
        if rules is None:
            raise UnreadableRulesError(
                f"{path} is not a rule file: it needs `groups`, each with `name` and `rules`"
            )
        result += [replace(rule, file=str(path)) for rule in rules]
    return result


def _read_documents(path: Path) -> list[Any]:
    try:
        return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        reason = error.strerror
    except (yaml.YAMLError, UnicodeDecodeError):
        reason = "it is not YAML"
    raise UnreadableRulesError(f"cannot read {path}: {reason}; pass a rule file or a folder of rule files")


def _parse_document(document: Any) -> list[LoadedRule] | None:
    """Return a document's rules; [] for any other Kubernetes object, None if it is not a rule file."""
    if isinstance(document, Mapping) and "kind" in document:
        if document["kind"] != "PrometheusRule":
            return []
        document = document.get("spec")
    try:
        return list(_parse_groups(document))
    except (KeyError, TypeError, AttributeError):
        return None


def _parse_groups(document: Any) -> Iterator[LoadedRule]:
    for group in document["groups"]:
        for rule in group["rules"]:
            yield LoadedRule(
                group=group["name"],
                name=rule["alert"] if "alert" in rule else rule["record"],
                is_alert="alert" in rule,
                expr=str(rule["expr"]),
                for_=parse_duration(str(rule.get("for", ""))),
                keep_firing_for=parse_duration(str(rule.get("keep_firing_for", ""))),
                labels=rule.get("labels") or {},
                annotations=rule.get("annotations") or {},
            )
