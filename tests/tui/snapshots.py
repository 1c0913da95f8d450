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

from tests.tui.pictures import PICTURES, taken

GOLDEN: Final = Path(__file__).with_name("golden")
DOCUMENTS: Final = Path(__file__).parents[2] / "docs" / "pictures"


def golden(name: str, width: int) -> Path:
    """Return where the text of a screen is."""
    return GOLDEN / f"{name}-{width}.txt"


async def drawn(*names: str) -> dict[Path, str]:
    """Return all files as they should be, or those of some screens."""
    found: dict[Path, str] = {}
    for one in await taken([one for one in PICTURES if not names or one.name in names]):
        found[golden(one.name, one.width)] = one.text
        if one.svg:
            found[DOCUMENTS / f"tui-{one.name}.svg"] = one.svg
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
