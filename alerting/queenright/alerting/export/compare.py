"""Compare the rules generated from the settings with rules from files or from Prometheus."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from queenright.alerting.export.loaded_rules import LoadedRule, parse_duration

_TOKEN: Final = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"|(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)"
    r"|(?P<time>(?:\d+(?:ms|[ywdhms]))+)"
    r"|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
    r"|(?P<blank>\s+)"
    r"|(?P<sign>.)",
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A part of a rule whose existing value differs from the wanted one."""

    part: str
    existing: str
    wanted: str


@dataclass(frozen=True, slots=True)
class Difference:
    """
    A difference between the wanted and the existing rules.

    The kinds are ``added`` (wanted but missing), ``removed`` (existing but not wanted), ``changed`` (the
    existing rule differs in ``changes``), and ``duplicate`` (another existing rule has the same name and
    labels; this one differs from the wanted rule in ``changes``).
    """

    kind: Literal["added", "removed", "changed", "duplicate"]
    rule: LoadedRule
    changes: tuple[RuleChange, ...] = ()


def normalize_expression(expr: str) -> str:
    """
    Normalize whitespace, numbers, durations and quotes, which Prometheus reformats.
    """
    return " ".join(filter(None, (_normalize_token(token) for token in _TOKEN.finditer(expr))))


def _normalize_token(token: re.Match[str]) -> str:
    word = token[0]
    if token.lastgroup == "blank":
        return ""
    if token.lastgroup == "number":
        return f"{float(word):g}"
    if token.lastgroup == "time":
        return f"{parse_duration(word):g}s"
    if token.lastgroup == "text":
        return f'"{word[1:-1]}"'
    return word


def compare(wanted_rules: Iterable[LoadedRule], existing: Iterable[LoadedRule]) -> list[Difference]:
    """
    Return the differences in the order of ``wanted_rules``, followed by superfluous rules.

    Args:
        existing: Rules from Prometheus or files. Rules that are not Queenright's are ignored.
    """
    rules = list(wanted_rules)
    remaining: dict[tuple[bool, str], list[LoadedRule]] = defaultdict(list)
    for rule in existing:
        if rule.is_ours:
            remaining[rule.is_alert, rule.name].append(rule)
    # Match by labels first, because the bands of one alert differ only in their labels.
    matches = [_pop_best_match(remaining[rule.is_alert, rule.name], rule) for rule in rules]
    unmatched_counts = Counter(
        (rule.is_alert, rule.name) for rule, match in zip(rules, matches, strict=True) if match is None
    )
    differences: list[Difference] = []
    for rule, match in zip(rules, matches, strict=True):
        candidates = remaining[rule.is_alert, rule.name]
        if match is None and len(candidates) == 1 == unmatched_counts[rule.is_alert, rule.name]:
            match = candidates.pop()
        if match is None:
            differences.append(Difference("added", rule))
        elif changes := tuple(_find_changes(match, rule)):
            differences.append(Difference("changed", rule, changes))
    by_key = {_key(rule): rule for rule in rules}
    superfluous_rules = (rule for candidates in remaining.values() for rule in candidates)
    return [*differences, *(_to_difference(rule, by_key.get(_key(rule))) for rule in superfluous_rules)]


def _to_difference(existing: LoadedRule, wanted_rule: LoadedRule | None) -> Difference:
    if wanted_rule is None:
        return Difference("removed", existing)
    return Difference("duplicate", existing, tuple(_find_changes(existing, wanted_rule)))


def _key(rule: LoadedRule) -> tuple[bool, str, tuple[tuple[str, str], ...]]:
    """Return the identity of a rule's series in Prometheus."""
    return rule.is_alert, rule.name, tuple(sorted(rule.labels.items()))


def _pop_best_match(candidates: list[LoadedRule], rule: LoadedRule) -> LoadedRule | None:
    """Remove and return the candidate with the same labels, the most similar one if there are several."""
    same_label_candidates = [
        candidate for candidate in candidates if dict(candidate.labels) == dict(rule.labels)
    ]
    if not same_label_candidates:
        return None
    expr = normalize_expression(rule.expr)
    best = min(
        same_label_candidates, key=lambda c: (normalize_expression(c.expr) != expr, c.group != rule.group)
    )
    candidates.remove(best)
    return best


def _find_changes(existing: LoadedRule, wanted: LoadedRule) -> Iterator[RuleChange]:
    if normalize_expression(existing.expr) != normalize_expression(wanted.expr):
        yield RuleChange("expr", existing.expr, wanted.expr)
    if existing.group != wanted.group:
        yield RuleChange("group", existing.group, wanted.group)
    for part, before, after in (
        ("for", existing.for_, wanted.for_),
        ("keep_firing_for", existing.keep_firing_for, wanted.keep_firing_for),
    ):
        if before != after:
            yield RuleChange(part, f"{before:g} s", f"{after:g} s")
    for part, old, new in (
        ("label", existing.labels, wanted.labels),
        ("annotation", existing.annotations, wanted.annotations),
    ):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                yield RuleChange(f"{part} {name}", old.get(name, ""), new.get(name, ""))
