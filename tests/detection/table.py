"""The tables as Markdown, and their places in a document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tests.detection.aims import AIMS
from tests.detection.measure import GROUPS, Measured, precision, recall
from tests.detection.rates import bootstrap, middle, percent, rate

_SIDE_BY_SIDE: Final = {
    "RepairAgent, three equivalent actions in a row": "RepairAgent, 3 equivalent in a row: found",
    "RepairAgent, solved": "RepairAgent, solved: alarms",
    "mini-swe-agent with Gemini 3, solved": "mini-swe-agent, solved: alarms",
    "InterCode, no gain in 5 turns or more": "InterCode, no gain: found",
    "InterCode, solved": "InterCode, solved: alarms",
    "tau-bench airline with GPT-4o, solved": "tau-bench, solved: alarms",
}

BLOCKS: Final = ("rates", "peers", "labels", "thresholds")
"""The tables in a document, by name."""


def marks(block: str) -> tuple[str, str]:
    """Return the lines between which a block stands."""
    return f"<!-- measured {block}: begin -->\n", f"<!-- measured {block}: end -->\n"


def block_of(document: str, block: str) -> str:
    """
    Return what stands between the marks of a block.

    Raises:
        ValueError: if the document has no such marks.
    """
    begin, end = marks(block)
    if begin not in document or end not in document:
        raise ValueError(
            f"no lines {begin.strip()!r} and {end.strip()!r}; write them where the block belongs"
        )
    return document.split(begin, 1)[1].split(end, 1)[0]


def with_block(document: str, block: str, text: str) -> str:
    """Return the document with ``text`` in a block's place; see `block_of` for what is raised."""
    begin, end = marks(block)
    return document.replace(begin + block_of(document, block) + end, begin + text + end)


def with_our_rows(document: str, ours: Measured) -> str:
    """Return the document with what is ours in it measured anew, and the rows of others as they are."""
    document = with_block(document, "rates", ours_by_group(ours))
    anew = {
        "peers": [row(side_by_side_row(ours))],
        "labels": [row(by_label_row(ours))],
    }
    for block, rows in anew.items():
        lines = block_of(document, block).splitlines(keepends=True)
        places = [index for index, line in enumerate(lines) if line.startswith(f"| {ours.detector.name} |")]
        for index, line in zip(places, rows, strict=False):
            lines[index] = line
        document = with_block(document, block, "".join(lines))
    return document


def ours_by_group(ours: Measured) -> str:
    """Return our rates, a row for each group of runs."""
    rows = [["runs", "of", "any finding", "high or critical", "loop or zero progress", "aim"]]
    for name in GROUPS:
        counts = ours.groups[name]
        aims = [f"{_AIMED[aim.what]} {aim}" for aim in AIMS if aim.group == name]
        found = [rate(hits, counts.runs) for hits in (counts.any, counts.severe, counts.loops)]
        rows.append([name, str(counts.runs), *found, ", ".join(aims) or "\N{EN DASH}"])
    return table(rows) + "\n" + _delays(ours) + "\n"


_AIMED: Final = {"any": "any", "severe": "high", "loops": "loop"}


def _delays(ours: Measured) -> str:
    lines = []
    for words, values in (("all runs", ours.delays), ("RepairAgent and OpenHands", ours.long_delays)):
        found = middle(values)
        if found is not None:
            steps, (low, high) = found
            lines.append(f"{words}: {steps:.0f} ({low:.0f}\N{EN DASH}{high:.0f}; {len(values)} runs)")
    return "Median delay, in steps from the first repeated call to the finding: " + "; ".join(lines) + "."


def side_by_side(measured: Iterable[Measured]) -> str:
    """Return all detectors, a row each."""
    rows = [["detector", *_SIDE_BY_SIDE.values(), "median delay"]]
    rows += [side_by_side_row(one) for one in measured]
    return table(rows)


def side_by_side_row(one: Measured) -> list[str]:
    """Return how one detector did, cell by cell."""
    cells = [one.detector.name]
    for name in _SIDE_BY_SIDE:
        counts = one.groups[name]
        # Ours is asked for a loop or zero progress where a loop is sought; the others for any alarm.
        cells.append(rate(counts.loops if name.startswith("InterCode") else counts.any, counts.runs))
    found = middle(one.delays)
    return [
        *cells,
        "\N{EN DASH}"
        if found is None
        else f"{found[0]:.0f} ({found[1].low:.0f}\N{EN DASH}{found[1].high:.0f})",
    ]


def by_label(measured: Iterable[Measured]) -> str:
    """Return precision and recall a step against the labels of people, a row for each detector."""
    rows = [["detector", "steps with an alarm", "precision", "recall"]]
    rows += [by_label_row(one) for one in measured]
    return table(rows)


def by_label_row(one: Measured) -> list[str]:
    """Return how one detector's alarms hold against people's labels, cell by cell."""
    cells = [one.detector.name, str(sum(run.flagged for run in one.labelled))]
    for statistic in (precision, recall):
        value, interval = statistic(one.labelled), bootstrap(one.labelled, statistic)
        if value is None or interval is None:
            cells.append("\N{EN DASH}")
        else:
            cells.append(
                f"{percent(value)} "
                f"({percent(interval.low, bare=True)}\N{EN DASH}{percent(interval.high, bare=True)})"
            )
    return cells


def row(cells: Iterable[str]) -> str:
    """Return one line of a table."""
    return "| " + " | ".join(cells) + " |\n"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first row is its head."""
    return row(rows[0]) + row(["---"] * len(rows[0])) + "".join(row(cells) for cells in rows[1:])
