"""The questions of docs/promql.md: each query, and what its comment expects of the answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "promql.md"

_QUESTION: Final = re.compile(
    r"^### (?P<title>[^\n]+)\n\n```promql\n(?P<query>.+?)\n```\n\n```text\n(?P<answer>.+?)\n```\n\n"
    r"(?P<reading>[^\n]+)\n\n<!-- expect: (?P<expected>\{[^\n]*\}) -->$",
    re.MULTILINE | re.DOTALL,
)
_LABEL: Final = re.compile(r'(\w+)="')


@dataclass(frozen=True)
class Question:
    """
    One question.

    ``expected`` holds ``has``: labels that some rows must have; ``values``: between which each value is;
    ``rows``: between which their number is.
    """

    title: str
    query: str
    answer: str
    expected: Mapping[str, Any]

    def shown_labels(self) -> set[frozenset[str]]:
        """Return which labels the rows of the answer in the document have."""
        rows = [row for row in self.answer.splitlines() if row != "..."]
        return {frozenset(_LABEL.findall(row)) for row in rows}

    def faults(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Yield what is wrong with the rows that Prometheus answers."""
        if not rows:
            yield "there is no answer"
            return
        metrics = [row["metric"] for row in rows]
        for wanted in self.expected.get("has", ()):
            if not any(wanted.items() <= metric.items() for metric in metrics):
                yield f"no row has {wanted}: {metrics}"
        low, high = self.expected["values"]
        numbers = [float(row["value"][1]) for row in rows]
        if all(math.isnan(number) for number in numbers):
            yield "no row has a number"
        for metric, number in zip(metrics, numbers, strict=True):
            if not (math.isnan(number) or low <= number <= high):
                yield f"{metric} is {number:g}, not within {low:g} to {high:g}"
        fewest, most = self.expected.get("rows", (1, math.inf))
        if not fewest <= len(rows) <= most:
            yield f"there are {len(rows)} rows"
        labels = {frozenset(metric.keys() - {"__name__"}) for metric in metrics}
        if labels != self.shown_labels():
            yield f"the document shows labels {self.shown_labels()}, the answer has {labels}"


def questions() -> list[Question]:
    """Return the questions of the document, in its order."""
    found = _QUESTION.finditer(DOCUMENT.read_text("utf-8"))
    return [Question(q["title"], q["query"], q["answer"], json.loads(q["expected"])) for q in found]
