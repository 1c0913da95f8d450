"""Find the scrape target of each worker, and whether it is up."""

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
_WORKER_LABELS: Final = frozenset({"__name__"}).union(
    *(metric.labels for metric in names.METRICS.values() if metric.name.startswith("queenright_worker_"))
)
"""The labels of the workers' own metrics. All other labels come from the target."""

_STRING: Final = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)"""
_MATCHER: Final = re.compile(rf"([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*({_STRING})")
# In Prometheus 3, a label name may be any quoted text.
_SINGLE_MATCHER: Final = rf"(?:[a-zA-Z_]\w*|{_STRING})\s*(?:=~|!~|!=|=)\s*{_STRING}"
_MATCHERS: Final = re.compile(rf"\s*(?:{_SINGLE_MATCHER}\s*(?:,\s*{_SINGLE_MATCHER}\s*)*(?:,\s*)?)?")
_SPECIAL: Final = re.compile(r"([\\.+*?()|\[\]{}^$])")


def target_name(labels: Mapping[str, str]) -> str:
    """Return the name of a series' target."""
    parts = [labels.get("job", ""), labels.get("instance", "")]
    if labels.get("cluster"):
        parts.insert(0, labels["cluster"])
    return "/".join(parts)


def target_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a series that come from its target, without those of a Prometheus replica."""
    return {
        name: value
        for name, value in labels.items()
        if name not in _WORKER_LABELS and not name.rstrip("_").endswith("replica")
    }


def may_share_target(labels: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """
    Return whether two series may come from the same target, because their common target labels are equal.
    """
    first, second = target_labels(labels), target_labels(other)
    return _get_place(first) == _get_place(second) and all(
        first[name] == second[name] for name in first.keys() & second.keys()
    )


class Targets:
    """The ``up`` series. A target name has several if there are replicas or duplicate names."""

    def __init__(self, ups: Iterable[Series]) -> None:
        self._ups: dict[tuple[str, str], list[Series]] = defaultdict(list)
        for series in ups:
            self._ups[_get_place(series.labels)].append(series)

    def up(self, labels: Mapping[str, str]) -> bool | None:
        """
        Return whether the target of a worker's series is up, or None if Prometheus has no such target.

        A target of the same name with a different value in any label does not count. With several Prometheus
        replicas, one that reaches the target is enough.
        """
        return _is_up(
            series
            for series in self._ups.get(_get_place(labels), ())
            if may_share_target(labels, series.labels)
        )

    def all_up(self, target: str) -> bool | None:
        """
        Return whether all targets of a name are up, because a name may be ambiguous. Return None without a
        target.
        """
        by_labels: dict[tuple[tuple[str, str], ...], list[Series]] = defaultdict(list)
        own_series = (s for ups in self._ups.values() for s in ups if target_name(s.labels) == target)
        for series in own_series:
            by_labels[tuple(sorted(target_labels(series.labels).items()))].append(series)
        return all(_is_up(ups) for ups in by_labels.values()) if by_labels else None


def _get_place(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("job", ""), labels.get("instance", "")


def _is_up(ups: Iterable[Series]) -> bool | None:
    values = [series.value for series in ups]
    return any(value == 1 for value in values) if values else None


async def query_targets(
    prometheus: Prometheus, targets: Iterable[str], metrics: Sequence[str], selector: str, now: float
) -> list[Series]:
    """
    Return the series of ``up`` and ``metrics`` of targets.

    Only the selector's target labels apply, and only to series that have them, because ``up`` has no label
    ``agent``.

    Raises:
        StackError: Prometheus cannot be queried.
    """
    # A job may contain a slash, so it is ambiguous where the instance begins.
    instances = sorted({part for target in targets for part in _list_instances(target)})
    batches = [instances[at : at + _BATCH] for at in range(0, len(instances), _BATCH)]
    relaxed_matchers = _MATCHER.sub(_relax_matcher, strip_braces(selector))
    answer = []
    for batch in batches:
        matchers = f'__name__=~"{"|".join((UP, *metrics))}",instance=~{_quote("|".join(map(_escape, batch)))}'
        answer += await prometheus.query(
            f"{{{matchers}{',' if relaxed_matchers else ''}{relaxed_matchers}}}", now
        )
    return answer


def is_selector(text: str) -> bool:
    """Return whether a text consists of label matchers, with or without braces. Regexes are not checked."""
    inside = text.strip()
    if inside.startswith("{") != inside.endswith("}"):
        return False
    return _MATCHERS.fullmatch(inside[1:-1] if inside.startswith("{") else inside) is not None


def strip_braces(selector: str) -> str:
    """Return the matchers inside a selector's braces."""
    return selector.strip().removeprefix("{").removesuffix("}").strip().strip(",")


def _list_instances(target: str) -> list[str]:
    parts = target.split("/")
    return ["/".join(parts[at:]) for at in range(1, len(parts))]


def _relax_matcher(matcher: re.Match[str]) -> str:
    """Relax a selector's matcher so that it also matches any agent, and series without its label."""
    name, operator, value = matcher.groups()
    quote, body = value[0], value[1:-1]
    if name in _WORKER_LABELS:
        return f'{name}=~".*"'
    if operator == "=~":
        return f"{name}=~{quote}(?:{body})|{quote}"
    if operator == "=" and (quote == "`" or "\\" not in body):
        return f"{name}=~{_quote(f'{_escape(body)}|')}"
    return matcher[0]


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _quote(text: str) -> str:
    # PromQL quotes strings like Go, which is the same as in JSON for the characters of labels.
    return json.dumps(text, ensure_ascii=False)
