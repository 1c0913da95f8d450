"""docs/metrics.md lists exactly the names in the table."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import pytest

from queenright.instrumentation import names
from queenright.instrumentation.verdict import Verdict

DOCUMENT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in DOCUMENT.splitlines() if line[:1] == "|"
]


def list_quoted_names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", text))


def list_constants(*prefixes: str) -> set[str]:
    values = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    return {value for value in values if value.startswith(prefixes)}


def test_metrics_document_lists_exactly_the_metrics_with_types_and_labels() -> None:
    documented = {
        list_quoted_names(row[0])[0]: (row[1], list_quoted_names(row[2]))
        for row in ROWS
        if row[0].startswith("`queenright_")
    }

    assert documented == {metric.name: (metric.kind, metric.labels) for metric in names.METRICS.values()}


def test_every_label_is_explained() -> None:
    labels = {label for metric in names.METRICS.values() for label in metric.labels}
    section = DOCUMENT[DOCUMENT.index("## Labels") : DOCUMENT.index("## Spans")]

    assert labels <= set(
        list_quoted_names("\n".join(line.split("|")[1] for line in section.splitlines() if "|" in line))
    )


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("`verdict`", [*(verdict.lower() for verdict in Verdict), "error"]),
        ("`outcome` of a tool call", list(names.ToolOutcome)),
        ("`reason`", list(names.WaitingReason)),
        ("`phase`", list(names.Phase)),
    ],
)
def test_documented_label_values_are_the_emitted_ones(row: str, values: list[str | StrEnum]) -> None:
    [documented_cells] = [cells for cells in ROWS if cells[0] == row]

    assert list(list_quoted_names(documented_cells[1])) == values


def test_every_span_and_attribute_and_start_record_is_documented() -> None:
    wire_names = list_constants("gen_ai.", "queenright.", "error.", "service.")
    spans = {value for name, value in vars(names).items() if name.startswith("SPAN_")} | set(names.Operation)
    mentions = set(list_quoted_names(DOCUMENT))

    assert wire_names <= mentions
    assert spans == {span.split(" {")[0] for span in mentions if " {" in span}


def test_documented_attributes_are_emitted() -> None:
    written_attributes = list_constants("gen_ai.", "queenright.")
    attributes = {
        name for name in list_quoted_names(DOCUMENT) if re.fullmatch(r"(gen_ai|queenright)\.[a-z_.]+", name)
    }

    assert attributes - {"queenright.instrumentation.names"} <= written_attributes
