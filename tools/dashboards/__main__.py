"""Write the JSON of the dashboards, or check with ``--check`` whether the files are up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from queenright.health.settings import HealthSettings
from tools.dashboards.boards import dashboards

FOLDER = Path(__file__).parents[2] / "grafana" / "dashboards"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 if ``--check`` finds a difference, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the JSON files")
    options = parser.parse_args(arguments)
    files = dashboards(HealthSettings())
    if options.check:
        return _check(options.folder, files)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (options.folder / name).write_text(text, encoding="utf-8")
    return 0


def _check(folder: Path, files: dict[str, str]) -> int:
    existing = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    stale = sorted(name for name in files.keys() | existing.keys() if files.get(name) != existing.get(name))
    for name in stale:
        print(
            f"{folder / name} is not up to date; run `python -m tools.dashboards`.",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
