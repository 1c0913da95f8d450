"""
Golden files of the screens: their text for the tests, their pictures for the documents.

``python -m tests.tui.snapshots`` says what has changed, with ``--write`` it is written; behind it, names of
screens, if only those are meant.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from tests.tui.pictures import PICTURES, SIZES, svg_of, taken, text_of

GOLDEN: Final = Path(__file__).with_name("golden")
DOCUMENTS: Final = Path(__file__).parents[2] / "docs" / "pictures"
SHOWN: Final = ("fleet", "worker", "notice", "queen", "talk")
"""Screens whose pictures are in the documents."""


def golden(name: str, width: int) -> Path:
    """Return where the text of a screen is."""
    return GOLDEN / f"{name}-{width}.txt"


async def drawn(*names: str) -> dict[Path, str]:
    """Return all files as they should be, or those of some screens."""
    found: dict[Path, str] = {}
    for picture in [one for one in PICTURES if not names or one.name in names]:
        for size in SIZES:
            found[golden(picture.name, size[0])] = await taken(picture, size, text_of)
        if picture.name in SHOWN:
            found[DOCUMENTS / f"tui-{picture.name}.svg"] = await taken(picture, SIZES[-1], svg_of)
    return found


def main() -> int:
    """Write them, or say which are not as they should be."""
    changed = 0
    names = [one for one in sys.argv[1:] if not one.startswith("-")]
    for path, text in asyncio.run(drawn(*names)).items():
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
