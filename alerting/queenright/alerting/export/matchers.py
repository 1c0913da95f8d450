"""
Parse PromQL label matchers from the command line, and check their labels.

Regular expressions and escapes are not checked here; ``promtool check rules`` compiles them.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from queenright.instrumentation import names
from queenright.instrumentation.errors import QueenrightError

Scope = Literal["service", "worker"]

_MATCHER: Final = re.compile(
    r"""\s*(?P<label>[^\s=!~"'`,{}()]+)\s*(?P<operator>=~|!~|!=|=)\s*"""
    r"""(?P<value>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`[^`]*`)\s*(?:,|$)"""
)
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TARGET_LABELS: Final = frozenset({"job", "instance"})


class InvalidMatchersError(QueenrightError):
    """Raised for matchers that are invalid or cannot match anything. The message names the problem."""


def read_matchers(text: str, scope: Scope) -> str:
    """
    Normalize matchers: separate them with ", ", and remove spaces around operators. Return "" for no
    matchers.

    Args:
        text: PromQL matchers without braces, such as ``job="x", cluster=~'a|b'``. A trailing comma is
            allowed.
        scope: Whether the matchers select metrics of the service or of workers.

    Raises:
        InvalidMatchersError: The text is not a list of matchers, or the matchers cannot match a target of
            Queenright.
    """
    matchers = []
    position = 0
    while text[position:].strip():
        match = _MATCHER.match(text, position)
        if match is None:
            raise InvalidMatchersError(
                f'{text!r} is not a list of matchers; write it like \'job="x", cluster="y"\'.'
            )
        position = match.end()
        label, operator, value = match.group("label", "operator", "value")
        matcher = f"{label}{operator}{value}"
        if fault := _find_fault(label, operator, value[1:-1], scope):
            raise InvalidMatchersError(f"{matcher} cannot narrow the rules: {fault}.")
        matchers.append(matcher)
    return ", ".join(matchers)


def _find_fault(label: str, operator: str, value: str, scope: Scope) -> str | None:
    if not _LABEL.fullmatch(label):
        return f"{label!r} is not a label name; use letters, digits and _, not starting with a digit"
    if label.startswith("__"):
        return "labels that start with __ cannot be used, because the rules select the metrics themselves"
    if label in _list_metric_labels(scope):
        return (
            f"`{label}` is a label of Queenright's metrics and not of a target; use target labels "
            "such as job, instance, namespace or cluster"
        )
    if label in _TARGET_LABELS and operator in ("=", "=~") and not value:
        return f"every target has a {label}, so nothing would match"
    return None


def _list_metric_labels(scope: Scope) -> frozenset[str]:
    """Return the labels of the scope's metrics, without those that all worker metrics share."""
    workers = [metric for metric in names.METRICS.values() if metric.name.startswith("queenright_worker_")]
    others = [metric for metric in names.METRICS.values() if metric not in workers]
    all_labels = {label for metric in (workers if scope == "worker" else others) for label in metric.labels}
    common_labels = (
        set.intersection(*(set(metric.labels) for metric in workers)) if scope == "worker" else set()
    )
    return frozenset(all_labels - common_labels | {"le"})
