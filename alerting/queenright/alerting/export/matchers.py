"""
Parse PromQL label matchers from the command line, and check their labels.

Regular expressions and escapes are left to Prometheus: ``promtool check rules`` compiles them.
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
    """Raised for matchers that are invalid or cannot match anything; names the problem."""


def read_matchers(text: str, scope: Scope) -> str:
    """
    Normalize matchers: separate them with ", ", without spaces around operators; empty for none.

    Args:
        text: PromQL matchers without braces: ``job="x", cluster=~'a|b'``; a trailing comma is allowed.
        scope: Whether they select service or worker metrics.

    Raises:
        InvalidMatchersError: The text is not a list of matchers, or cannot match a Queenright target.
    """
    matchers = []
    at = 0
    while text[at:].strip():
        match = _MATCHER.match(text, at)
        if match is None:
            raise InvalidMatchersError(
                f'{text!r} is not a list of matchers; write it like \'job="x", cluster="y"\'.'
            )
        at = match.end()
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
    if label in _own_labels(scope):
        return (
            f"`{label}` is a label of Queenright's metrics and not of a target; use target labels "
            "such as job, instance, namespace or cluster"
        )
    if label in _TARGET_LABELS and operator in ("=", "=~") and not value:
        return f"every target has a {label}, so nothing would match"
    return None


def _own_labels(scope: Scope) -> frozenset[str]:
    """Return the labels of Queenright's metrics, except those that all worker metrics share."""
    workers = [metric for metric in names.METRICS.values() if metric.name.startswith("queenright_worker_")]
    others = [metric for metric in names.METRICS.values() if metric not in workers]
    all_labels = {label for metric in (workers if scope == "worker" else others) for label in metric.labels}
    common_labels = (
        set.intersection(*(set(metric.labels) for metric in workers)) if scope == "worker" else set()
    )
    return frozenset(all_labels - common_labels | {"le"})
