"""
Measure the detectors on recorded runs, and compare them with others: ``python -m tests.detection --traces
DIR``.

Prints the tables. ``--write FILE`` replaces the tables in a document. ``--check FILE`` checks that the tables
in a document are current. ``--ours`` keeps the rows of other detectors, which take the longest to measure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.detection.measure import measure_detectors, read_recorded_runs
from tests.detection.peers import make_all_detectors, make_queenright_detector
from tests.detection.table import (
    BLOCKS,
    extract_block,
    format_comparison,
    format_label_table,
    format_rates_by_group,
    make_markers,
    replace_block,
    replace_our_rows,
)
from tests.detection.thresholds import AimedRuns, format_threshold_table


def replace_all_tables(folder: Path, document: str) -> str:
    """Return the document with new measurements in every table."""
    runs = read_recorded_runs(folder)
    measurements = measure_detectors(runs, make_all_detectors())
    tables = {
        "rates": format_rates_by_group(measurements[0]),
        "peers": format_comparison(measurements),
        "labels": format_label_table(measurements),
        "thresholds": format_threshold_table(AimedRuns(runs)),
    }
    for name, text in tables.items():
        document = replace_block(document, name, text)
    return document


def replace_our_tables(folder: Path, document: str) -> str:
    """Return the document with new measurements of Queenright's detectors and thresholds."""
    runs = read_recorded_runs(folder)
    document = replace_our_rows(document, measure_detectors(runs, [make_queenright_detector()])[0])
    return replace_block(document, "thresholds", format_threshold_table(AimedRuns(runs)))


def main() -> int:
    """Print, write or check the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.detection", description=__doc__)
    parser.add_argument(
        "--traces", type=Path, required=True, help="folder of recorded runs (*.jsonl, *.jsonl.gz)"
    )
    parser.add_argument("--ours", action="store_true", help="keep the rows of other detectors")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--write", type=Path, metavar="FILE", help="replace the tables in this document")
    mode.add_argument(
        "--check", type=Path, metavar="FILE", help="exit 1 unless the tables in this document are current"
    )
    options = parser.parse_args()
    if not sorted(options.traces.glob("*.jsonl*")):
        parser.error(f"no recorded runs in {options.traces}")
    page = options.write or options.check
    old = (
        page.read_text(encoding="utf-8")
        if page
        else "".join("".join(make_markers(block)) for block in BLOCKS)
    )
    new = (replace_our_tables if options.ours else replace_all_tables)(options.traces, old)
    for name in BLOCKS:
        print(f"## {name}\n\n{extract_block(new, name)}")
    if options.write is not None:
        options.write.write_text(new, encoding="utf-8")
    elif options.check is not None:
        stale_tables = [name for name in BLOCKS if extract_block(new, name) != extract_block(old, name)]
        if stale_tables:
            print(
                f"{options.check} has stale tables: {', '.join(stale_tables)}; update them with --write",
                file=sys.stderr,
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
