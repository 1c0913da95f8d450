"""The questions in docs/promql.md: each query, and its expected result in ``answers.json``."""

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
    A question with its query and its expected result.

    ``expected`` has ``labels``, the sets of label names of the rows; ``has``, labels that some row must have;
    ``values``, the range of each value; and ``rows``, the range of the number of rows.
    """

    title: str
    query: str
    expected: Mapping[str, Any]

    def find_faults(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the faults in the rows that Prometheus returns."""
        if not rows:
            yield "the result is empty"
            return
        metrics = [row["metric"] for row in rows]
        for required_labels in self.expected.get("has", ()):
            if not any(required_labels.items() <= metric.items() for metric in metrics):
                yield f"no row has {required_labels}: {metrics}"
        low, high = self.expected["values"]
        numbers = [float(row["value"][1]) for row in rows]
        if all(math.isnan(number) for number in numbers):
            yield "no row has a number"
        for metric, number in zip(metrics, numbers, strict=True):
            if not (math.isnan(number) or low <= number <= high):
                yield f"{metric} is {number:g}, not within {low:g} to {high:g}"
        min_rows, max_rows = self.expected.get("rows", (1, math.inf))
        if not min_rows <= len(rows) <= max_rows:
            yield f"there are {len(rows)} rows"
        labels = sorted({tuple(sorted(metric.keys() - {"__name__"})) for metric in metrics})
        if labels != [tuple(names) for names in self.expected["labels"]]:
            yield f"the labels are {labels}, not {self.expected['labels']}"


def load_questions() -> list[Question]:
    """Return the questions in the document, in its order."""
    answers = json.loads(_ANSWERS.read_text("utf-8"))
    matches = _QUESTION.finditer(DOCUMENT.read_text("utf-8"))
    return [Question(match["title"], match["query"], answers[match["title"]]) for match in matches]
