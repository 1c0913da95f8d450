"""
``python -m tests.detection --traces DIR``: how the detectors do on recorded runs, beside those of others.

Prints the tables. ``--write FILE`` puts them between the marks in that document, ``--check FILE``
says whether they stand there already. ``--ours`` leaves what others came to as it is, which takes longest.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.detection.measure import measure, recorded
from tests.detection.peers import detectors, ours
from tests.detection.table import (
    BLOCKS,
    block_of,
    by_label,
    marks,
    ours_by_group,
    side_by_side,
    with_block,
    with_our_rows,
)
from tests.detection.thresholds import Aimed, thresholds


def all_tables(folder: Path, document: str) -> str:
    """Return the document with every table measured anew."""
    runs = recorded(folder)
    measured = measure(runs, detectors())
    tables = {
        "rates": ours_by_group(measured[0]),
        "peers": side_by_side(measured),
        "labels": by_label(measured),
        "thresholds": thresholds(Aimed(runs)),
    }
    for name, text in tables.items():
        document = with_block(document, name, text)
    return document


def our_tables(folder: Path, document: str) -> str:
    """Return the document with what is ours in it measured anew."""
    runs = recorded(folder)
    document = with_our_rows(document, measure(runs, [ours()])[0])
    return with_block(document, "thresholds", thresholds(Aimed(runs)))


def main() -> int:
    """Print, write or check the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.detection", description=__doc__)
    parser.add_argument(
        "--traces", type=Path, required=True, help="folder of recorded runs (*.jsonl, *.jsonl.gz)"
    )
    parser.add_argument(
        "--ours", action="store_true", help="leave others and thresholds as they are: seconds"
    )
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this document")
    doing.add_argument("--check", type=Path, metavar="FILE", help="exit 1 unless they stand in this document")
    options = parser.parse_args()
    if not sorted(options.traces.glob("*.jsonl*")):
        parser.error(f"no recorded runs in {options.traces}")
    page = options.write or options.check
    old = page.read_text(encoding="utf-8") if page else "".join("".join(marks(block)) for block in BLOCKS)
    new = (our_tables if options.ours else all_tables)(options.traces, old)
    for name in BLOCKS:
        print(f"## {name}\n\n{block_of(new, name)}")
    if options.write is not None:
        options.write.write_text(new, encoding="utf-8")
    elif options.check is not None:
        stale = [name for name in BLOCKS if block_of(new, name) != block_of(old, name)]
        if stale:
            print(
                f"{options.check} is not what was measured: {', '.join(stale)}; use --write", file=sys.stderr
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
