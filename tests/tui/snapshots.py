"""
Golden files of the screens: their text for the tests, their pictures for the documents.

``python -m tests.tui.snapshots`` lists what has changed; ``--write`` writes it. Further arguments are
names of screens; then only those are compared.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from tests.tui.pictures import PICTURES, capture_screens

GOLDEN: Final = Path(__file__).with_name("golden")
DOCUMENTS: Final = Path(__file__).parents[2] / "docs" / "pictures"


def golden_path(name: str, width: int) -> Path:
    """Return the path of a screen's golden file."""
    return GOLDEN / f"{name}-{width}.txt"


async def render_files(*names: str) -> dict[Path, str]:
    """Return the current content of all files, or of those of some screens."""
    contents: dict[Path, str] = {}
    for capture in await capture_screens(
        [picture for picture in PICTURES if not names or picture.name in names]
    ):
        contents[golden_path(capture.name, capture.width)] = capture.text
        if capture.svg:
            contents[DOCUMENTS / f"tui-{capture.name}.svg"] = capture.svg
    return contents


def main() -> int:
    """Write the files, or list those that differ."""
    changed = 0
    names = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    for path, text in asyncio.run(render_files(*names)).items():
        if path.is_file() and path.read_text() == text:
            continue
        changed += 1
        print(path.name)
        if "--write" in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return 0 if "--write" in sys.argv else int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
