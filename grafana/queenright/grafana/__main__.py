"""Write the dashboards' JSON, or say with ``--check`` whether the committed files are up to date."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from queenright.grafana.agent import agent
from queenright.grafana.fleet import fleet

FOLDER = Path(__file__).parents[2] / "dashboards"


def render(dashboard: Dashboard) -> str:
    """Return the dashboard's JSON, the same bytes for the same dashboard."""
    return json.dumps(dashboard, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def rendered() -> dict[str, str]:
    """Return every dashboard's JSON by file name."""
    return {"fleet.json": render(fleet()), "agent.json": render(agent())}


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or compare them; return 0, or 1 if ``--check`` found a difference."""
    parser = argparse.ArgumentParser(prog="python -m queenright.grafana", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the JSON files are")
    options = parser.parse_args(arguments)
    files = rendered()
    if options.check:
        return _check(options.folder, files)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (options.folder / name).write_text(text, encoding="utf-8")
    return 0


def _check(folder: Path, files: dict[str, str]) -> int:
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    stale = sorted(name for name in files.keys() | found.keys() if files.get(name) != found.get(name))
    for name in stale:
        print(
            f"{folder / name} is not what the code makes; run `python -m queenright.grafana`.",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
