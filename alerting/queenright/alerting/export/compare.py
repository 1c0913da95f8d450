"""What differs between the rules that the settings give and those that something else has."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from queenright.alerting.export.loaded_rules import LoadedRule, seconds

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
class Change:
    """One part of a rule that differs: what is there, and what it should be."""

    part: str
    there: str
    wanted: str


@dataclass(frozen=True, slots=True)
class Difference:
    """
    One rule that differs.

    ``added``: the settings give it and it is not there; ``removed``: it is there and the settings do not
    give it; ``changed``: in ``changes``; ``twice``: it is there once more, with the same name and labels, and
    ``changes`` says in what it is not what the settings give.
    """

    kind: Literal["added", "removed", "changed", "twice"]
    rule: LoadedRule
    changes: tuple[Change, ...] = ()


def normal(expr: str) -> str:
    """
    Return an expression without what a printer of PromQL may change.

    Blanks, how numbers and durations are written, and quotes: Prometheus shows an expression as it prints it.
    """
    return " ".join(filter(None, (_normal(token) for token in _TOKEN.finditer(expr))))


def _normal(token: re.Match[str]) -> str:
    word = token[0]
    if token.lastgroup == "blank":
        return ""
    if token.lastgroup == "number":
        return f"{float(word):g}"
    if token.lastgroup == "time":
        return f"{seconds(word):g}s"
    if token.lastgroup == "text":
        return f'"{word[1:-1]}"'
    return word


def compare(wanted: Iterable[LoadedRule], there: Iterable[LoadedRule]) -> list[Difference]:
    """
    Return what differs, in the order of ``wanted``, and then what is there besides.

    Args:
        wanted: What the settings give.
        there: What is loaded or lies in files; rules that go by no name of ours are passed over.
    """
    rules = list(wanted)
    left: dict[tuple[bool, str], list[LoadedRule]] = defaultdict(list)
    for rule in there:
        if rule.is_ours:
            left[rule.alert, rule.name].append(rule)
    # First those with the same labels: the bands of one alert differ in nothing else.
    twins = [_take(left[rule.alert, rule.name], rule) for rule in rules]
    alone = Counter((rule.alert, rule.name) for rule, twin in zip(rules, twins, strict=True) if twin is None)
    found: list[Difference] = []
    for rule, twin in zip(rules, twins, strict=True):
        rest = left[rule.alert, rule.name]
        if twin is None and len(rest) == 1 == alone[rule.alert, rule.name]:
            twin = rest.pop()
        if twin is None:
            found.append(Difference("added", rule))
        elif changes := tuple(_changes(twin, rule)):
            found.append(Difference("changed", rule, changes))
    given = {_key(rule): rule for rule in rules}
    return [*found, *(_left(rule, given.get(_key(rule))) for rest in left.values() for rule in rest)]


def _left(there: LoadedRule, wanted: LoadedRule | None) -> Difference:
    if wanted is None:
        return Difference("removed", there)
    return Difference("twice", there, tuple(_changes(there, wanted)))


def _key(rule: LoadedRule) -> tuple[bool, str, tuple[tuple[str, str], ...]]:
    """Return by what Prometheus tells a rule's series apart."""
    return rule.alert, rule.name, tuple(sorted(rule.labels.items()))


def _take(candidates: list[LoadedRule], rule: LoadedRule) -> LoadedRule | None:
    """Take out the candidate with this rule's labels; if there are several, the one most like it."""
    same = [candidate for candidate in candidates if dict(candidate.labels) == dict(rule.labels)]
    if not same:
        return None
    expr = normal(rule.expr)
    best = min(same, key=lambda c: (normal(c.expr) != expr, c.group != rule.group))
    candidates.remove(best)
    return best


def _changes(there: LoadedRule, wanted: LoadedRule) -> Iterator[Change]:
    if normal(there.expr) != normal(wanted.expr):
        yield Change("expr", there.expr, wanted.expr)
    if there.group != wanted.group:
        yield Change("group", there.group, wanted.group)
    for part, before, after in (
        ("for", there.for_, wanted.for_),
        ("keep_firing_for", there.keep_firing_for, wanted.keep_firing_for),
    ):
        if before != after:
            yield Change(part, f"{before:g} s", f"{after:g} s")
    for part, old, new in (
        ("label", there.labels, wanted.labels),
        ("annotation", there.annotations, wanted.annotations),
    ):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                yield Change(f"{part} {name}", old.get(name, ""), new.get(name, ""))
