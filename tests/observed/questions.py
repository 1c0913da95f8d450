"""The questions of docs/promql.md: each query, and what ``answers.json`` expects of its answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "promql.md"

_ANSWERS: Final = Path(__file__).parent / "answers.json"
_QUESTION: Final = re.compile(
    r"^### (?P<title>[^\n]+)\n\n```promql\n(?P<query>.+?)\n```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Question:
    """
    One question.

    ``expected`` holds ``labels``: the sets of label names that the rows have; ``has``: labels that some rows
    must have; ``values``: between which each value is; ``rows``: between which their number is.
    """

    title: str
    query: str
    expected: Mapping[str, Any]

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
        labels = sorted({tuple(sorted(metric.keys() - {"__name__"})) for metric in metrics})
        if labels != [tuple(names) for names in self.expected["labels"]]:
            yield f"the labels are {labels}, not {self.expected['labels']}"


def questions() -> list[Question]:
    """Return the questions of the document, in its order."""
    answers = json.loads(_ANSWERS.read_text("utf-8"))
    match = _QUESTION.finditer(DOCUMENT.read_text("utf-8"))
    return [Question(q["title"], q["query"], answers[q["title"]]) for q in match]
