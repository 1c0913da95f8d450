"""
Parse PromQL label matchers from the command line, and check their labels.

Regular expressions and escapes are left to Prometheus: ``promtool check rules`` compiles them.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from queenright.instrumentation import names
from queenright.instrumentation.errors import QueenrightError

Of = Literal["service", "worker"]

_MATCHER: Final = re.compile(
    r"""\s*(?P<label>[^\s=!~"'`,{}()]+)\s*(?P<sign>=~|!~|!=|=)\s*"""
    r"""(?P<value>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`[^`]*`)\s*(?:,|$)"""
)
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TARGET_LABELS: Final = frozenset({"job", "instance"})


class InvalidMatchersError(QueenrightError):
    """Raised for matchers that are invalid or cannot match anything; names the problem."""


def read_matchers(text: str, of: Of) -> str:
    """
    Normalize matchers: separated by ", " and without spaces around the sign; empty for none.

    Args:
        text: PromQL matchers without braces: ``job="x", cluster=~'a|b'``; a trailing comma is allowed.
        of: The scope that they select from: service or worker metrics.

    Raises:
        InvalidMatchersError: The text is not a list of matchers, or cannot match a Queenright target.
    """
    matchers = []
    at = 0
    while text[at:].strip():
        read = _MATCHER.match(text, at)
        if read is None:
            raise InvalidMatchersError(
                f'{text!r} is not a list of matchers; write it like \'job="x", cluster="y"\'.'
            )
        at = read.end()
        label, sign, value = read.group("label", "sign", "value")
        matcher = f"{label}{sign}{value}"
        if fault := _find_fault(label, sign, value[1:-1], of):
            raise InvalidMatchersError(f"{matcher} cannot narrow the rules: {fault}.")
        matchers.append(matcher)
    return ", ".join(matchers)


def _find_fault(label: str, sign: str, value: str, of: Of) -> str | None:
    if not _LABEL.fullmatch(label):
        return f"{label!r} is not a label name; use letters, digits and _, not starting with a digit"
    if label.startswith("__"):
        return "labels that start with __ cannot be used, because the rules select the metrics themselves"
    if label in _own_labels(of):
        return (
            f"`{label}` is a label of Queenright's metrics and not of a target; use target labels "
            "such as job, instance, namespace or cluster"
        )
    if label in _TARGET_LABELS and sign in ("=", "=~") and not value:
        return f"every target has a {label}, so nothing would match"
    return None


def _own_labels(of: Of) -> frozenset[str]:
    """Return the labels of Queenright's metrics, except those that all worker metrics share."""
    workers = [metric for metric in names.METRICS.values() if metric.name.startswith("queenright_worker_")]
    others = [metric for metric in names.METRICS.values() if metric not in workers]
    all_labels = {label for metric in (workers if of == "worker" else others) for label in metric.labels}
    common_labels = set.intersection(*(set(metric.labels) for metric in workers)) if of == "worker" else set()
    return frozenset(all_labels - common_labels | {"le"})
