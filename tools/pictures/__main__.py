"""
Draw every dashboard from the answers to its own queries: ``python -m tools.pictures --write docs/pictures``.

The story of the tests is played first, which takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Final

from queenright.grafana.boards import dashboards
from queenright.health.settings import HealthSettings
from tests.grafana.shown import NAMES
from tools.pictures.answers import Answers, Window, in_whole_bars
from tools.pictures.page import draw
from tools.story.recording import Story, running_story
from tools.story.settings import HEALTH

_CHOSEN: Final = ("archivist", "concierge", "courier", "librarian")
"""Between them these agents show what one may do: save nothing, wait, fail, get on."""


def main(arguments: list[str] | None = None) -> int:
    """Play the story and write the pictures; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FOLDER", help="where the pictures go")
    parser.add_argument("--only", choices=NAMES, action="append", help="not all of them")
    options = parser.parse_args(arguments)
    options.write.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running_story(Path(folder)) as story:
        for file in write(story, options.write, options.only or NAMES):
            sys.stdout.write(f"{file}\n")
    return 0


def write(story: Story, folder: Path, names: tuple[str, ...] | list[str]) -> list[Path]:
    """Draw dashboards from what a story answers; return the files."""
    story = in_whole_bars(story)
    window = Window(story.since, story.until)
    # The lines belong to the settings of the story, where seconds are what minutes are elsewhere.
    made = dashboards(HealthSettings.model_validate(HEALTH))
    files = []
    for name in names:
        chosen = {"agent": f"({'|'.join(_CHOSEN)})"} if name == "agent" else {}
        file = folder / f"dashboard-{name}.png"
        draw(json.loads(made[f"{name}.json"]), Answers(story, window, chosen)).save(file)
        files.append(file)
    return files


if __name__ == "__main__":
    sys.exit(main())
