"""Scrape targets: which worker is on which, and whether it is up. Pure, but for the one question."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from queenright.instrumentation import names
from queenright.judge.stack.prometheus import Prometheus, Series

UP: Final = "up"

_BATCH: Final = 100
_OWN: Final = frozenset({"__name__"}).union(
    *(metric.labels for metric in names.METRICS.values() if metric.name.startswith("queenright_worker_"))
)
"""What the metrics of a worker say of themselves; all other labels are of its target."""

_STRING: Final = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)"""
_MATCHER: Final = re.compile(rf"([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*({_STRING})")
# Since Prometheus 3 a label's name may be any text, in quotes.
_ONE: Final = rf"(?:[a-zA-Z_]\w*|{_STRING})\s*(?:=~|!~|!=|=)\s*{_STRING}"
_MATCHERS: Final = re.compile(rf"\s*(?:{_ONE}\s*(?:,\s*{_ONE}\s*)*(?:,\s*)?)?")
_SPECIAL: Final = re.compile(r"([\\.+*?()|\[\]{}^$])")


def target_of(labels: Mapping[str, str]) -> str:
    """Return the process that a series is of, by the labels that Prometheus gives its targets."""
    parts = [labels.get("job", ""), labels.get("instance", "")]
    if labels.get("cluster"):
        parts.insert(0, labels["cluster"])
    return "/".join(parts)


def target_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a series that are its target's, without those of a Prometheus' replica."""
    return {
        name: value
        for name, value in labels.items()
        if name not in _OWN and not name.rstrip("_").endswith("replica")
    }


def is_of(labels: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two series may be of one target: whatever says where they are, says the same in both."""
    one, two = target_labels(labels), target_labels(other)
    return _place(one) == _place(two) and all(one[name] == two[name] for name in one.keys() & two.keys())


class Targets:
    """What Prometheus says of its targets: ``up``, as often as there are replicas and namesakes."""

    def __init__(self, told: Iterable[Series]) -> None:
        self._told: dict[tuple[str, str], list[Series]] = defaultdict(list)
        for series in told:
            self._told[_place(series.labels)].append(series)

    def up(self, labels: Mapping[str, str]) -> bool | None:
        """
        Whether the target of a worker's series is up; None if Prometheus knows of none.

        What is said of a namesake, which has another value in any label, does not count. Of several
        replicas of a Prometheus it is enough that one sees it.
        """
        return _up(series for series in self._told.get(_place(labels), ()) if is_of(labels, series.labels))

    def all_up(self, target: str) -> bool | None:
        """Whether all that have this name are up: of more than one, nobody knows which is meant."""
        by_labels: dict[tuple[tuple[str, str], ...], list[Series]] = defaultdict(list)
        named = (s for told in self._told.values() for s in told if target_of(s.labels) == target)
        for series in named:
            by_labels[tuple(sorted(target_labels(series.labels).items()))].append(series)
        return all(_up(told) for told in by_labels.values()) if by_labels else None


def _place(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("job", ""), labels.get("instance", "")


def _up(told: Iterable[Series]) -> bool | None:
    values = [series.value for series in told]
    return any(value == 1 for value in values) if values else None


async def ask_again(
    prometheus: Prometheus, targets: Iterable[str], metrics: Sequence[str], selector: str, now: float
) -> list[Series]:
    """
    Return ``up`` and ``metrics`` of targets that are not seen any more; in one answer, so of one scrape.

    The selector counts only as far as it says where a worker is, and only in series that have its labels:
    ``up`` has no agent.

    Raises:
        StackError: Prometheus cannot be asked.
    """
    # A job may have a slash in it: where the instance begins nobody can tell.
    instances = sorted({part for target in targets for part in _ends(target)})
    batches = [instances[at : at + _BATCH] for at in range(0, len(instances), _BATCH)]
    chosen = _where(selector)
    found = []
    for some in batches:
        matchers = (
            f'__name__=~"{"|".join((UP, *metrics))}",instance=~{_quoted("|".join(map(_escaped, some)))}'
        )
        found += await prometheus.query(f"{{{matchers}{',' if chosen else ''}{chosen}}}", now)
    return found


def is_selector(text: str) -> bool:
    """Whether a text is label matchers, in braces or not; their regular expressions are not looked at."""
    inside = text.strip()
    if inside.startswith("{") != inside.endswith("}"):
        return False
    return _MATCHERS.fullmatch(inside[1:-1] if inside.startswith("{") else inside) is not None


def matchers_of(selector: str) -> str:
    """Return what stands in a selector's braces."""
    return selector.strip().removeprefix("{").removesuffix("}").strip().strip(",")


def _ends(target: str) -> list[str]:
    parts = target.split("/")
    return ["/".join(parts[at:]) for at in range(1, len(parts))]


def _where(selector: str) -> str:
    """Return a selector's matchers so that a series without their labels fits, and any agent."""
    return _MATCHER.sub(_relaxed, matchers_of(selector))


def _relaxed(matcher: re.Match[str]) -> str:
    name, operator, quoted = matcher.groups()
    quote, body = quoted[0], quoted[1:-1]
    if name in _OWN:
        return f'{name}=~".*"'
    if operator == "=~":
        return f"{name}=~{quote}(?:{body})|{quote}"
    if operator == "=" and (quote == "`" or "\\" not in body):
        return f"{name}=~{_quoted(f'{_escaped(body)}|')}"
    return matcher[0]


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _quoted(text: str) -> str:
    # A string of PromQL is quoted like one of Go, and so, in what labels are made of, like JSON.
    return json.dumps(text, ensure_ascii=False)
