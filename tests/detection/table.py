"""The tables as Markdown, and their blocks in a document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tests.detection.aims import AIMS
from tests.detection.measure import GROUPS, Measurement, compute_precision, compute_recall
from tests.detection.rates import compute_bootstrap_interval, compute_median, format_percent, format_rate

_COMPARED_GROUPS: Final = {
    "RepairAgent, three equivalent actions in a row": "RepairAgent, 3 equivalent in a row: found",
    "RepairAgent, solved": "RepairAgent, solved: alarms",
    "mini-swe-agent with Gemini 3, solved": "mini-swe-agent, solved: alarms",
    "InterCode, no gain in 5 turns or more": "InterCode, no gain: found",
    "InterCode, solved": "InterCode, solved: alarms",
    "tau-bench airline with GPT-4o, solved": "tau-bench, solved: alarms",
}

BLOCKS: Final = ("rates", "peers", "labels", "thresholds")
"""The tables in a document, by name."""


def make_markers(block: str) -> tuple[str, str]:
    """Return the lines that mark the beginning and end of a block."""
    return f"<!-- measured {block}: begin -->\n", f"<!-- measured {block}: end -->\n"


def extract_block(document: str, block: str) -> str:
    """
    Return the text between the markers of a block.

    Raises:
        ValueError: The document does not contain the markers.
    """
    begin, end = make_markers(block)
    if begin not in document or end not in document:
        raise ValueError(
            f"the document has no lines {begin.strip()!r} and {end.strip()!r}; "
            "add them where the table belongs"
        )
    return document.split(begin, 1)[1].split(end, 1)[0]


def replace_block(document: str, block: str, text: str) -> str:
    """Return the document with ``text`` in a block. Raises the errors of `extract_block`."""
    begin, end = make_markers(block)
    return document.replace(begin + extract_block(document, block) + end, begin + text + end)


def replace_our_rows(document: str, measurement: Measurement) -> str:
    """Return the document with new rows of Queenright. The rows of other detectors stay."""
    document = replace_block(document, "rates", format_rates_by_group(measurement))
    new_rows = {
        "peers": [format_row(format_comparison_row(measurement))],
        "labels": [format_row(format_label_row(measurement))],
    }
    for block, rows in new_rows.items():
        lines = extract_block(document, block).splitlines(keepends=True)
        row_indexes = [
            index for index, line in enumerate(lines) if line.startswith(f"| {measurement.detector.name} |")
        ]
        for index, line in zip(row_indexes, rows, strict=False):
            lines[index] = line
        document = replace_block(document, block, "".join(lines))
    return document


def format_rates_by_group(measurement: Measurement) -> str:
    """Return a table of Queenright's rates, with a row for each group of runs."""
    rows = [["runs", "of", "any finding", "high or critical", "loop or zero progress", "aim"]]
    for name in GROUPS:
        counts = measurement.groups[name]
        aims = [f"{_AIM_NAMES[aim.kind]} {aim}" for aim in AIMS if aim.group == name]
        rate_cells = [
            format_rate(alarm_count, counts.runs) for alarm_count in (counts.any, counts.severe, counts.loops)
        ]
        rows.append([name, str(counts.runs), *rate_cells, ", ".join(aims) or "\N{EN DASH}"])
    return format_table(rows) + "\n" + _format_delays(measurement) + "\n"


_AIM_NAMES: Final = {"any": "any", "severe": "high", "loops": "loop"}


def _format_delays(measurement: Measurement) -> str:
    lines = []
    for runs, values in (
        ("all runs", measurement.delays),
        ("RepairAgent and OpenHands", measurement.long_delays),
    ):
        median_delay = compute_median(values)
        if median_delay is not None:
            steps, (low, high) = median_delay
            lines.append(f"{runs}: {steps:.0f} ({low:.0f}\N{EN DASH}{high:.0f}; {len(values)} runs)")
    return "Median delay, in steps from the first repeated call to the finding: " + "; ".join(lines) + "."


def format_comparison(measurements: Iterable[Measurement]) -> str:
    """Return a table with a row for each detector."""
    rows = [["detector", *_COMPARED_GROUPS.values(), "median delay"]]
    rows += [format_comparison_row(measurement) for measurement in measurements]
    return format_table(rows)


def format_comparison_row(measurement: Measurement) -> list[str]:
    """Return the comparison cells of a detector."""
    cells = [measurement.detector.name]
    for name in _COMPARED_GROUPS:
        counts = measurement.groups[name]
        # On InterCode, the comparison is about loops and zero progress; elsewhere, about any alarm.
        cells.append(format_rate(counts.loops if name.startswith("InterCode") else counts.any, counts.runs))
    median_delay = compute_median(measurement.delays)
    return [
        *cells,
        "\N{EN DASH}"
        if median_delay is None
        else f"{median_delay[0]:.0f} ({median_delay[1].low:.0f}\N{EN DASH}{median_delay[1].high:.0f})",
    ]


def format_label_table(measurements: Iterable[Measurement]) -> str:
    """Return a table of precision and recall per step against human labels, with a row for each detector."""
    rows = [["detector", "steps with an alarm", "precision", "recall"]]
    rows += [format_label_row(measurement) for measurement in measurements]
    return format_table(rows)


def format_label_row(measurement: Measurement) -> list[str]:
    """Return the table cells of a detector's precision and recall."""
    cells = [measurement.detector.name, str(sum(run.flagged for run in measurement.labelled_runs))]
    for statistic in (compute_precision, compute_recall):
        value, interval = (
            statistic(measurement.labelled_runs),
            compute_bootstrap_interval(measurement.labelled_runs, statistic),
        )
        if value is None or interval is None:
            cells.append("\N{EN DASH}")
        else:
            cells.append(
                f"{format_percent(value)} "
                f"({format_percent(interval.low, bare=True)}\N{EN DASH}"
                f"{format_percent(interval.high, bare=True)})"
            )
    return cells


def format_row(cells: Iterable[str]) -> str:
    """Return one line of a table."""
    return "| " + " | ".join(cells) + " |\n"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table. The first row is the header."""
    return (
        format_row(rows[0])
        + format_row(["---"] * len(rows[0]))
        + "".join(format_row(cells) for cells in rows[1:])
    )
