"""
``python -m tests.detection --traces DIR``: how the detectors do on recorded runs, beside those of others.

Prints the tables. ``--write FILE`` puts them between the marks in that document, ``--check FILE``
says whether they stand there already. ``--ours`` leaves out what takes minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.detection.measure import measure, recorded
from tests.detection.peers import detectors, ours
from tests.detection.table import (
    block_of,
    by_label,
    ours_by_group,
    severe_side_by_side,
    side_by_side,
    uses,
    with_block,
)
from tests.detection.thresholds import Aimed, thresholds


def blocks(folder: Path, *, only_ours: bool = False) -> dict[str, str]:
    """Return the tables by the name of their block."""
    runs = recorded(folder)
    if only_ours:
        return {"rates": ours_by_group(measure(runs, [ours()])[0])}
    measured = measure(runs, detectors())
    return {
        "rates": ours_by_group(measured[0]),
        "peers": f"{side_by_side(measured)}\n{severe_side_by_side(measured)}\n{uses(measured)}",
        "labels": by_label(measured),
        "thresholds": thresholds(Aimed(runs)),
    }


def main() -> int:
    """Print, write or check the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.detection", description=__doc__)
    parser.add_argument(
        "--traces", type=Path, required=True, help="folder of recorded runs (*.jsonl, *.jsonl.gz)"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this document")
    parser.add_argument(
        "--check", type=Path, metavar="FILE", help="exit 1 unless they stand in this document"
    )
    parser.add_argument("--ours", action="store_true", help="only our own rates")
    options = parser.parse_args()
    if not sorted(options.traces.glob("*.jsonl*")):
        parser.error(f"no recorded runs in {options.traces}")
    found = blocks(options.traces, only_ours=options.ours)
    for name, text in found.items():
        print(f"## {name}\n\n{text}")
    if options.write is not None:
        document = options.write.read_text(encoding="utf-8")
        for name, text in found.items():
            document = with_block(document, name, text)
        options.write.write_text(document, encoding="utf-8")
    if options.check is not None:
        document = options.check.read_text(encoding="utf-8")
        stale = [name for name, text in found.items() if block_of(document, name) != text]
        if stale:
            print(
                f"{options.check} is not what was measured: {', '.join(stale)}; use --write", file=sys.stderr
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
